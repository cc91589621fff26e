// Products with weights kept as floating-point numbers. An output is one sum in float32, in the order of the inputs.
#pragma once

#include "products_layout.h"
#include "tile.h"

namespace SPECDEC_VARIANT {
namespace {

// How a weight is kept: the inputs and bytes of a lane, the type of the activations that it meets, and how the products
// of a vector of weights with one row's activations are added to that row's sums, in so many passes.
struct AsF32 {
    using Activation = float;
    using Operand = Floats;
    static constexpr int kInputs = 1, kBytes = 4, kPasses = 1;
    static Operand operand(const unsigned char* from, int) { return load<Floats>(from); }
    static Floats add(Floats sums, Operand w, const float* x) { return fma(splat(*x), w, sums); }
};

struct AsF16 : AsF32 {
    static constexpr int kBytes = 2;
    static Operand operand(const unsigned char* from, int) { return from_f16(load<Halves>(from)); }
};

// Pairs of inputs in a lane, as instructions for bfloat16 want them; apart again by one operation each.
struct AsBf16 : AsF32 {
    static constexpr int kInputs = 2, kPasses = 2;
    static Operand operand(const unsigned char* from, int pass) {
        const Words pairs = load<Words>(from);
        return bits<Floats>(pass ? upper_halves(pairs) : pairs << 16);
    }
};

#if defined(__AVX512BF16__)
// Activations in bfloat16 too: one instruction for 32 products.
struct AsBf16Pairs {
    using Activation = uint16_t;
    using Operand = Words;
    static constexpr int kInputs = 2, kBytes = 4, kPasses = 1;
    static Operand operand(const unsigned char* from, int) { return load<Words>(from); }
    static Floats add(Floats sums, Operand w, const uint16_t* x) {
        Ints pair = splat(load<int32_t>(x));
        return (Floats)_mm512_dpbf16_ps((__m512)sums, bits<__m512bh>(w), bits<__m512bh>(pair));
    }
};
#endif

template <class Weight, int R, int V, int Each>
__attribute__((always_inline)) inline void float_add(const unsigned char* weight, const typename Weight::Activation* x,
                                                     int64_t ldx, int pass, typename Weight::Operand (&w)[2],
                                                     Floats (&sums)[R][V]) {
    using At = Tile<R, V, Each>;
    if constexpr (At::kRow == 0)
        w[At::kPlace] = Weight::operand(weight + At::kVector * kLanes * Weight::kBytes, pass);
    Floats& sum = sums[At::kRow][At::kVector];
    sum = Weight::add(sum, w[At::kPlace], x + At::kRow * ldx + pass);
}

// R rows times V vectors of one strip. Every sum has its own register, so that it runs through the inputs in order.
template <class Weight, int R, int V, int... Each>
__attribute__((noinline)) void float_block(std::integer_sequence<int, Each...>, const unsigned char* weight,
                                           const typename Weight::Activation* x, int64_t ldx, int64_t depth,
                                           const float* bias, float* y, int64_t ldy, int64_t left, bool add,
                                           const unsigned char* ahead) {
    constexpr int kStep = kStrip * Weight::kBytes, kFetched = V * kLanes * Weight::kBytes;
    Floats sums[R][V] = {};
    for (int64_t k = 0; k < depth; k += Weight::kInputs, weight += kStep) {
        if (ahead) {
            fetch<V * kLanes>(ahead, kFetched);
            ahead += kFetched;
        }
        typename Weight::Operand w[2];
        (float_add<Weight, R, V, Each>(weight, x + k, ldx, 0, w, sums), ...);
        if constexpr (Weight::kPasses > 1) (float_add<Weight, R, V, Each>(weight, x + k, ldx, 1, w, sums), ...);
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            if (v * kLanes < left) put(y + r * ldy + v * kLanes, sums[r][v], bias + v * kLanes, left - v * kLanes, add);
}

// Vectors per pass for R rows: enough sums to hide the latency of an addition, few enough for the registers.
constexpr int float_vectors(int rows, int passes) {
#if defined(__AVX512F__)
    return rows + passes <= 7 ? 4 : 2;
#else
    return rows == 1 ? 8 : rows + passes <= 4 ? 4 : 2;
#endif
}

#if defined(__AVX512F__)
constexpr int kFloatRows = 12;
#else
constexpr int kFloatRows = 6;
#endif

// `unread`: the strip's bytes that nothing has read yet, all or 0.
template <class Weight, int R>
void float_rows(int64_t rows, const unsigned char* weight, const typename Weight::Activation* x, int64_t ldx,
                int64_t depth, const float* bias, float* y, int64_t ldy, int64_t left, bool add, int64_t unread) {
    if constexpr (R > 1) {
        if (rows < R) return float_rows<Weight, R - 1>(rows, weight, x, ldx, depth, bias, y, ldy, left, add, unread);
    }
    constexpr int V = float_vectors(R, Weight::kPasses);
    for (int64_t column = 0; column < least(left, kStrip); column += V * kLanes) {
        const unsigned char* ahead = unread ? fetched_from(weight, unread, column, V * kLanes) : nullptr;
        float_block<Weight, R, V>(TileProducts<R, V>(), weight + column * Weight::kBytes, x, ldx, depth, bias + column,
                                  y + column, ldy, left - column, add, ahead);
    }
}

inline void copy_row(float* to, const float* from, int64_t count) { memcpy(to, from, count * 4); }

inline void copy_row(uint16_t* to, const float* from, int64_t count) {
    int64_t k = 0;
    for (; k + kLanes <= count; k += kLanes) store(to + k, to_bf16(load<Floats>(from + k)));
    for (; k < count; k++) to[k] = bf16_of(from[k]);
}

template <class Weight>
struct FloatProduct {
    using Activation = typename Weight::Activation;

    static int64_t strip_bytes(int64_t depth) { return depth / Weight::kInputs * kStrip * Weight::kBytes; }
    static int64_t row_bytes(const Product* p) { return row_stride(p->depth * sizeof(Activation)); }
    static int64_t scratch(const Product* p, int64_t rows) { return rows * row_bytes(p); }

    // Packs kStrip rows of a weight, [kStrip, depth] in float32.
    static void pack(const Product* p, const float* rows, unsigned char* strip) {
        for (int64_t k = 0; k < p->depth; k += Weight::kInputs)
            for (int row = 0; row < kStrip; row++)
                for (int i = 0; i < Weight::kInputs; i++) {
                    const float value = rows[row * p->depth + k + i];
                    constexpr int kBytes = Weight::kBytes / Weight::kInputs;
                    const uint16_t half = kBytes == 4 ? 0 : Weight::kInputs == 2 ? bf16_of(value) : f16_of(value);
                    memcpy(strip, kBytes == 4 ? (const void*)&value : &half, kBytes);
                    strip += kBytes;
                }
    }

    static void prepare(const Product* p, const float* x, int64_t ldx, Share rows, unsigned char* scratch) {
        for (int64_t row = rows.begin; row < rows.end; row++) {
            Activation* to = (Activation*)(scratch + row * row_bytes(p));
            copy_row(to, x + row * ldx, p->in);
            memset(to + p->in, 0, (p->depth - p->in) * sizeof(Activation));
        }
    }

    static void run(const Product* p, const unsigned char* scratch, int64_t rows, float* y, int64_t ldy, bool add,
                    Share strips) {
        const int64_t ldx = row_bytes(p) / sizeof(Activation);
        const Activation* x = (const Activation*)scratch;
        const Blocks blocks(rows, kFloatRows);
        for (int64_t strip = strips.begin; strip < strips.end; strip++)
            for (int64_t block = 0; block < blocks.count; block++) {
                const int64_t row = blocks.begin(block), count = blocks.begin(block + 1) - row, column = strip * kStrip;
                float_rows<Weight, kFloatRows>(count, p->weight + strip * p->strip_bytes, x + row * ldx, ldx, p->depth,
                                               p->bias + column, y + row * ldy + column, ldy, p->out - column, add,
                                               block ? 0 : p->strip_bytes);
            }
    }
};

}  // namespace
}  // namespace SPECDEC_VARIANT
