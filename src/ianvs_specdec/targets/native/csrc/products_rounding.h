// Rounding of weights and activations to integers with one scale per group: see products_int.h.
#pragma once

#include "products_int.h"

namespace SPECDEC_VARIANT {
namespace {

constexpr int kVectors = kGroup / kLanes;  // of a group
typedef int8_t SmallInts __attribute__((vector_size(kLanes)));

inline Floats greater(Floats a, Floats b) { return a > b ? a : b; }

inline Floats magnitude(Floats values) { return bits<Floats>(bits<Words>(values) & 0x7fffffffu); }

// Rounds numbers below 2 ** 22 to the nearest integer, ties to even: with the addend a float's last bit is 1.
inline Ints nearest(Floats values, Floats factors) {
    const float ones = 0x1.8p23f;
    return bits<Ints>(fma(values, factors, splat(ones))) - bits<int32_t>(ones);
}

inline Ints clamped(Ints values, int32_t least, int32_t most) {
    values = values < least ? splat(least) : values;
    return values > most ? splat(most) : values;
}

// Reduces all lanes by halves, with fewer dependent steps than lane by lane.
template <class Element, class Vector, class Join>
inline Element joined(Vector vector, Join join) {
    Element lanes[kLanes];
    store(lanes, vector);
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) lanes[lane] = join(lanes[lane], lanes[lane + half]);
    return lanes[0];
}

// Rounds a group of activations; returns its scale, and the sum of its integers in `total`.
inline float round_group(const float* from, int8_t* to, int32_t& total) {
    Floats values[kVectors], most = {};
    for (int v = 0; v < kVectors; v++) {
        values[v] = load<Floats>(from + v * kLanes);
        most = greater(magnitude(values[v]), most);
    }
    const float largest = joined<float>(most, [](float a, float b) { return a > b ? a : b; });
    const float inverse = largest > kSmallest ? AsInt8::kLargest / largest : 0.f;
    Ints sum = {};
    for (int v = 0; v < kVectors; v++) {
        const Ints whole = nearest(values[v], splat(inverse));
        store(to + v * kLanes, __builtin_convertvector(whole, SmallInts));
        sum += whole;
    }
    total = joined<int32_t>(sum, [](int32_t a, int32_t b) { return a + b; });
    return largest * (1.f / AsInt8::kLargest);
}

// Scales of one group for each output of a vector; `values` [inputs][outputs].
using OutputGroups = Floats[kGroup];

inline Floats scales_of(const OutputGroups& values, AsInt8) {  // the largest weight becomes the largest integer
    Floats most = {};
    for (Floats value : values) most = greater(magnitude(value), most);
    return most / (float)AsInt8::kLargest;
}

// Tries scales near the one that maps the largest weight to -8, and keeps the one with the least error.
inline Floats scales_of(const OutputGroups& values, AsInt4) {
    constexpr int kTries = 4;       // on either side
    constexpr float kStep = 0.2f;   // of an integer, from one try to the next
    Floats most = {}, extreme = {};
    for (Floats value : values) {
        extreme = magnitude(value) > most ? value : extreme;
        most = greater(magnitude(value), most);
    }
    Floats best = {}, scales = {};
    for (int attempt = -kTries; attempt <= kTries; attempt++) {
        const Floats factors = most > kSmallest ? (AsInt4::kLeast - attempt * kStep) / extreme : Floats{};
        Floats products = {}, squares = {};
        for (Floats value : values) {
            const Floats whole = to_floats(clamped(nearest(value, factors), AsInt4::kLeast, AsInt4::kLargest));
            products = fma(whole, value, products);
            squares = fma(whole, whole, squares);
        }
        // The least-squares scale for these integers, and the explained part of the weights' squares.
        const Floats least = squares > 0 ? products / squares : Floats{};
        const Floats explained = products * least;
        scales = explained > best ? least : scales;
        best = greater(explained, best);
    }
    return scales;
}

// Packs one group of kLanes outputs, `rows` [kLanes][depth], at `column` of the group's record.
template <class Weight>
void pack_groups(const float* rows, int64_t depth, unsigned char* record, int column) {
    OutputGroups values;
    for (int input = 0; input < kGroup; input++)
        for (int lane = 0; lane < kLanes; lane++) values[input][lane] = rows[lane * depth + input];
    const Halves rounded = to_bf16(scales_of(values, Weight()));
    store(record + Weight::kBytes + column * 2, rounded);
    const Floats scales = from_bf16(rounded), inverses = scales != 0 ? 1 / scales : Floats{};
    Words quads[kQuads] = {};
    for (int input = 0; input < kGroup; input++) {
        const Ints whole = clamped(nearest(values[input], inverses), Weight::kLeast, Weight::kLargest);
        quads[input / 4] |= bits<Words>(whole + Weight::kOffset) << (input % 4 * 8);
    }
    for (int q = 0; q < Weight::kBytes / (kStrip * 4); q++) {
        const Words both = Weight::kPerByte == 2 ? quads[q] | quads[q + kQuads / 2] << 4 : quads[q];
        store(record + (q * kStrip + column) * 4, both);
    }
}

template <class Weight>
struct IntProduct {
    static int64_t strip_bytes(int64_t depth) { return depth / kGroup * int_group_bytes<Weight>; }
    static int64_t scratch(const Product* p, int64_t rows) { return rows * int_row_bytes(p); }

    // Packs kStrip rows of a weight, [kStrip, depth] in float32.
    static void pack(const Product* p, const float* rows, unsigned char* strip) {
        for (int64_t k = 0; k < p->depth; k += kGroup, strip += int_group_bytes<Weight>)
            for (int column = 0; column < kStrip; column += kLanes)
                pack_groups<Weight>(rows + column * p->depth + k, p->depth, strip, column);
    }

    static void prepare(const Product* p, const float* x, int64_t ldx, Share rows, unsigned char* scratch) {
        for (int64_t row = rows.begin; row < rows.end; row++) {
            int8_t* integers = (int8_t*)(scratch + row * int_row_bytes(p));
            float* scales = (float*)(integers + p->depth);
            int32_t* begins = (int32_t*)(scales + p->depth / kGroup);
            for (int64_t g = 0; g < p->depth / kGroup; g++) {
                const float* from = x + row * ldx + g * kGroup;
                const int64_t left = p->in - g * kGroup;
                float padded[kGroup] = {};
                if (left < kGroup) from = (const float*)memcpy(padded, from, left * 4);
                int32_t total;
                scales[g] = round_group(from, integers + g * kGroup, total);
                begins[g] = -Weight::kOffset * total;
            }
        }
    }

    static void run(const Product* p, const unsigned char* scratch, int64_t rows, float* y, int64_t ldy, bool add,
                    Share strips) {
        int_run<Weight>(p, scratch, rows, y, ldy, add, strips);
    }
};

}  // namespace
}  // namespace SPECDEC_VARIANT
