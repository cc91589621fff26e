// Rounding of weights and activations to integers with one scale a group, see products_int.h.
#pragma once

#include "products_int.h"

namespace SPECDEC_VARIANT {
namespace {

constexpr int kVectors = kGroup / kLanes;  // of a group
typedef int8_t SmallInts __attribute__((vector_size(kLanes)));

struct Group {
    Floats values[kVectors];
    explicit Group(const float* from) {
        for (int v = 0; v < kVectors; v++) values[v] = load<Floats>(from + v * kLanes);
    }
};

inline float sum_of(Floats values) {
    float sum = 0;
    for (int lane = 0; lane < kLanes; lane++) sum += values[lane];
    return sum;
}

inline float largest_of(const Group& group, bool negative) {
    Floats largest = {};
    for (Floats value : group.values) {
        if (negative) value = -value;
        largest = value > largest ? value : largest;
    }
    float most = 0;
    for (int lane = 0; lane < kLanes; lane++) most = largest[lane] > most ? largest[lane] : most;
    return most;
}

// To the nearest integer, ties to even, of numbers below 2 ** 22: there a float's last digit is one.
inline Ints nearest(Floats values, float factor) {
    const float ones = 0x1.8p23f;
    return bits<Ints>(fma(values, splat(factor), splat(ones))) - bits<int32_t>(ones);
}

inline Ints clamped(Ints values, int32_t least, int32_t most) {
    values = values < least ? splat(least) : values;
    return values > most ? splat(most) : values;
}

template <class Weight>
void int_prepare(const Product* p, const float* x, int64_t ldx, Share rows, unsigned char* scratch) {
    for (int64_t row = rows.begin; row < rows.end; row++) {
        int8_t* integers = (int8_t*)(scratch + row * int_row_bytes(p));
        float* scales = (float*)(integers + p->depth);
        int32_t* begins = (int32_t*)(scales + p->depth / kGroup);
        for (int64_t g = 0; g < p->depth / kGroup; g++) {
            float padded[kGroup] = {};
            const float* from = x + row * ldx + g * kGroup;
            const int64_t left = p->in - g * kGroup;
            if (left < kGroup) from = (const float*)memcpy(padded, from, left * 4);
            const Group group(from);
            const float most = largest_of(group, false), least = largest_of(group, true);
            const float magnitude = most > least ? most : least;
            const float inverse = magnitude > kSmallest ? 127.f / magnitude : 0.f;
            Ints sum = {};
            for (int v = 0; v < kVectors; v++) {
                Ints whole = nearest(group.values[v], inverse);
                store(integers + g * kGroup + v * kLanes, __builtin_convertvector(whole, SmallInts));
                sum += whole;
            }
            int32_t total = 0;
            for (int lane = 0; lane < kLanes; lane++) total += sum[lane];
            scales[g] = magnitude * (1.f / 127);
            begins[g] = -Weight::kOffset * total;
        }
    }
}

// The scale of a group of weights. Of 8 bits the largest weight becomes the largest integer. Of 4 bits, scales about that
// with which the largest becomes -8 are tried; the one that leaves the least error is kept.
inline float scale_of(const Group& group, AsInt8) {
    const float most = largest_of(group, false), least = largest_of(group, true);
    return (most > least ? most : least) / AsInt8::kLargest;
}

inline float scale_of(const Group& group, AsInt4) {
    constexpr int kTries = 4;         // on either side
    constexpr float kStep = 0.2f;     // of an integer, from one try to the next
    const float most = largest_of(group, false), least = largest_of(group, true);
    const float extreme = most > least ? most : -least;
    float best = 0, scale = 0;
    for (int attempt = -kTries; attempt <= kTries && extreme != 0; attempt++) {
        const float factor = -(8 + attempt * kStep) / extreme;
        Floats with = {}, squares = {};
        for (Floats value : group.values) {
            Floats whole = to_floats(clamped(nearest(value, factor), -8, 7));
            with = fma(whole, value, with);
            squares = fma(whole, whole, squares);
        }
        // With the integers given, with / squares is the scale of the least squares, with ** 2 / squares what it explains.
        const float product = sum_of(with), square = sum_of(squares);
        if (square > 0 && product / square * product > best) {
            best = product / square * product;
            scale = product / square;
        }
    }
    return scale;
}

// Packs kStrip rows of a weight, [kStrip, depth] in float32, into a strip.
template <class Weight>
void int_pack(const Product* p, const float* rows, unsigned char* strip) {
    for (int64_t k = 0; k < p->depth; k += kGroup, strip += Weight::kBytes + kScaleBytes) {
        memset(strip, 0, Weight::kBytes);
        for (int row = 0; row < kStrip; row++) {
            const Group group(rows + row * p->depth + k);
            const uint16_t rounded = bf16_of(scale_of(group, Weight()));
            memcpy(strip + Weight::kBytes + row * 2, &rounded, 2);
            const float scale = float_of_bf16(rounded);
            const float inverse = scale != 0 ? 1 / scale : 0.f;
            for (int v = 0; v < kVectors; v++) {
                constexpr int lowest = Weight::kOffset == 8 ? -8 : -Weight::kLargest;
                Ints whole = clamped(nearest(group.values[v], inverse), lowest, Weight::kLargest) + Weight::kOffset;
                for (int lane = 0; lane < kLanes; lane++) {
                    const int input = v * kLanes + lane, quad = input / 4;
                    if (Weight::kOffset == 8)
                        strip[(quad % 4 * kStrip + row) * 4 + input % 4] |= whole[lane] << (quad / 4 * 4);
                    else
                        strip[(quad * kStrip + row) * 4 + input % 4] = (unsigned char)whole[lane];
                }
            }
        }
    }
}

template <class Weight>
struct IntProduct {
    static int64_t strip_bytes(int64_t depth) { return depth / kGroup * (Weight::kBytes + kScaleBytes); }
    static int64_t scratch(const Product* p, int64_t rows) { return rows * int_row_bytes(p); }
    static void pack(const Product* p, const float* rows, unsigned char* strip) { int_pack<Weight>(p, rows, strip); }
    static void prepare(const Product* p, const float* x, int64_t ldx, Share rows, unsigned char* scratch) {
        int_prepare<Weight>(p, x, ldx, rows, scratch);
    }
    static void run(const Product* p, const unsigned char* scratch, int64_t rows, float* y, int64_t ldy, bool add,
                    Share strips) {
        int_run<Weight>(p, scratch, rows, y, ldy, add, strips);
    }
};

}  // namespace
}  // namespace SPECDEC_VARIANT
