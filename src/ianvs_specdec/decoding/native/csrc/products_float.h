// Products with weights kept as floating-point numbers: float32 activations, fused multiply-adds in the order of the inputs.
#pragma once

#include "products_layout.h"

namespace SPECDEC_VARIANT {
namespace {

// A weight type: how many inputs a lane holds, and how a vector of lanes becomes that many vectors of floats.
struct AsF32 {
    static constexpr int kInputs = 1, kBytes = 4;
    static void widened(const unsigned char* from, Floats (&to)[1]) { to[0] = load<Floats>(from); }
};

struct AsF16 {
    static constexpr int kInputs = 1, kBytes = 2;
    static void widened(const unsigned char* from, Floats (&to)[1]) { to[0] = from_f16(load<Halves>(from)); }
};

struct AsBf16 {  // pairs of inputs, as instructions for bfloat16 want them; apart again by one operation each
    static constexpr int kInputs = 2, kBytes = 4;
    static void widened(const unsigned char* from, Floats (&to)[2]) {
        Words pair = load<Words>(from);
        to[0] = bits<Floats>(pair << 16);
        to[1] = bits<Floats>(pair & 0xffff0000u);
    }
};

// R rows times V vectors of one strip. Every sum has its own register, so that it runs through the inputs in order.
template <class Weight, int R, int V>
void float_block(const unsigned char* weight, const float* x, int64_t ldx, int64_t depth, const float* bias, float* y,
                 int64_t ldy, int64_t left, bool add) {
    Floats sums[R][V] = {};
    for (int64_t k = 0; k < depth; k += Weight::kInputs, weight += kStrip * Weight::kBytes) {
        for (int v = 0; v < V; v++) {
            Floats w[Weight::kInputs];
            Weight::widened(weight + v * kLanes * Weight::kBytes, w);
            for (int i = 0; i < Weight::kInputs; i++)
                for (int r = 0; r < R; r++) sums[r][v] = fma(splat(x[r * ldx + k + i]), w[i], sums[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            if (v * kLanes < left) put(y + r * ldy + v * kLanes, sums[r][v], bias + v * kLanes, left - v * kLanes, add);
}

// Vectors beside each other for R rows: enough sums to hide an addition's time, few enough for the registers.
constexpr int float_vectors(int rows) {
#if defined(__AVX512F__)
    return rows <= 6 ? 4 : 2;
#else
    return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
#endif
}

#if defined(__AVX512F__)
constexpr int kFloatRows = 12;
#else
constexpr int kFloatRows = 6;
#endif

template <class Weight, int R>
void float_rows(int64_t rows, const unsigned char* weight, const float* x, int64_t ldx, int64_t depth,
                const float* bias, float* y, int64_t ldy, int64_t left, bool add) {
    if constexpr (R > 1) {
        if (rows < R) return float_rows<Weight, R - 1>(rows, weight, x, ldx, depth, bias, y, ldy, left, add);
    }
    constexpr int V = float_vectors(R);
    for (int64_t column = 0; column < least(left, kStrip); column += V * kLanes)
        float_block<Weight, R, V>(weight + column * Weight::kBytes, x, ldx, depth, bias + column, y + column, ldy,
                                  left - column, add);
}

inline int64_t float_row_bytes(const Product* p) { return row_stride(p->depth * 4); }

inline void float_prepare(const Product* p, const float* x, int64_t ldx, Share rows, unsigned char* scratch) {
    for (int64_t row = rows.begin; row < rows.end; row++) {
        unsigned char* to = scratch + row * float_row_bytes(p);
        memcpy(to, x + row * ldx, p->in * 4);
        memset(to + p->in * 4, 0, (p->depth - p->in) * 4);
    }
}

template <class Weight>
void float_run(const Product* p, const unsigned char* scratch, int64_t rows, float* y, int64_t ldy, bool add,
               Share strips) {
    const int64_t ldx = float_row_bytes(p) / 4;
    const float* x = (const float*)scratch;
    const Blocks blocks(rows, kFloatRows);
    for (int64_t strip = strips.begin; strip < strips.end; strip++)
        for (int64_t block = 0; block < blocks.count; block++) {
            int64_t row = blocks.begin(block);
            float_rows<Weight, kFloatRows>(blocks.begin(block + 1) - row, p->weight + strip * p->strip_bytes,
                                           x + row * ldx, ldx, p->depth, p->bias + strip * kStrip,
                                           y + row * ldy + strip * kStrip, ldy, p->out - strip * kStrip, add);
        }
}

// Packs kStrip rows of a weight, [kStrip, depth] in float32, into a strip.
template <class Weight, class Element, class Round>
void float_pack(const Product* p, const float* rows, unsigned char* strip, Round round) {
    Element* to = (Element*)strip;
    for (int64_t k = 0; k < p->depth; k += Weight::kInputs)
        for (int row = 0; row < kStrip; row++)
            for (int i = 0; i < Weight::kInputs; i++) *to++ = round(rows[row * p->depth + k + i]);
}

}  // namespace
}  // namespace SPECDEC_VARIANT
