// Products with weights kept as integers of 8 or 4 bits. Groups of 32 inputs have one scale, of weights and of
// activations, as in llama.cpp's q8_0 and q4_0.
//
// Sums within a group are exact, so a processor may add in any order. Groups are added as floats in the inputs' order.
//
// A group of a strip: 8 quads (of 4 inputs) x 64 outputs x 4 unsigned bytes, then 64 scales in bfloat16. Of 4 bits, a
// byte has the quad q in its lower and the quad q + 4 in its upper half. Weights are moved up by `kOffset` to be
// unsigned, as the instructions want them. A row's sums begin with what takes this back.
#pragma once

#include "products_layout.h"

namespace SPECDEC_VARIANT {
namespace {

constexpr int kGroup = 32;               // inputs with one scale
constexpr int kQuads = kGroup / 4;       // a lane of 32 bits holds 4 inputs
constexpr int kScaleBytes = kStrip * 2;  // of a group
constexpr float kSmallest = 1e-30f;      // a group's largest number from which its inverse is surely finite

// The weights in a byte, the range of the integers, and the bytes of a group.
struct AsInt8 {
    static constexpr int kPerByte = 1, kLeast = -127, kLargest = 127, kOffset = 128;
    static constexpr int64_t kBytes = kGroup * kStrip;
};

struct AsInt4 {
    static constexpr int kPerByte = 2, kLeast = -8, kLargest = 7, kOffset = 8;
    static constexpr int64_t kBytes = kGroup * kStrip / 2;
};

// A row of activations: `depth` integers, then for each group its scale and the beginning of its sums.
struct IntRow {
    const int8_t* integers;
    const float* scales;
    const int32_t* begins;
    IntRow() = default;
    IntRow(const unsigned char* at, int64_t depth)
        : integers((const int8_t*)at),
          scales((const float*)(at + depth)),
          begins((const int32_t*)(scales + depth / kGroup)) {}
};

inline int64_t int_row_bytes(const Product* p) { return row_stride(p->depth + p->depth / kGroup * 8); }

template <class Weight>
constexpr int64_t int_group_bytes = Weight::kBytes + kScaleBytes;

inline Ints quad_of(const int8_t* four) { return splat(load<int32_t>(four)); }

#if defined(__AVX512VNNI__)

inline Ints dot(Ints sums, Words weights, Ints quad) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)quad);
}

// One group's sums for R rows and V vectors.
template <class Weight, int R, int V>
inline void group_sums(const unsigned char* weight, const IntRow (&x)[R], int64_t group, Ints (&sums)[R][V]) {
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sums[r][v] = splat(x[r].begins[group]);
    constexpr int kHalves = Weight::kPerByte;
    for (int q = 0; q < kQuads / kHalves; q++) {
        Words raw[V];
        for (int v = 0; v < V; v++) raw[v] = load<Words>(weight + (q * kStrip + v * kLanes) * 4);
        for (int half = 0; half < kHalves; half++) {
            Words w[V];
            for (int v = 0; v < V; v++) w[v] = kHalves == 1 ? raw[v] : raw[v] >> (4 * half) & 0x0f0f0f0fu;
            for (int r = 0; r < R; r++) {
                const Ints quad = quad_of(x[r].integers + group * kGroup + (half * kQuads / 2 + q) * 4);
                for (int v = 0; v < V; v++) sums[r][v] = dot(sums[r][v], w[v], quad);
            }
        }
    }
}

#else

// Adds products of neighbours to sums of 16 bits. The weights are nibbles: 8 times 2 * 15 * 127 stay below 2 ** 15.
inline Shorts pair_sums(Shorts sums, Words nibbles, Ints quad) {
#if defined(__AVX512BW__)
    return sums + (Shorts)_mm512_maddubs_epi16((__m512i)nibbles, (__m512i)quad);
#elif defined(__AVX2__)
    return sums + (Shorts)_mm256_maddubs_epi16((__m256i)nibbles, (__m256i)quad);
#else
    Shorts w = bits<Shorts>(nibbles), x = bits<Shorts>(quad);
    return sums + (w & 0xff) * (Shorts)((x << 8) >> 8) + (w >> 8) * (x >> 8);
#endif
}

// The two halves of every lane added, times `factor`.
inline Ints halves_added(Shorts sums, int16_t factor) {
#if defined(__AVX512BW__)
    return (Ints)_mm512_madd_epi16((__m512i)sums, _mm512_set1_epi16(factor));
#elif defined(__AVX2__)
    return (Ints)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(factor));
#else
    Ints both = bits<Ints>(sums);
    return ((both << 16 >> 16) + (both >> 16)) * factor;
#endif
}

template <class Weight, int R, int V>
inline void group_sums(const unsigned char* weight, const IntRow (&x)[R], int64_t group, Ints (&sums)[R][V]) {
    Shorts low[R][V] = {}, high[R][V] = {};
    if (Weight::kPerByte == 2) {
        for (int q = 0; q < kQuads / 2; q++)
            for (int v = 0; v < V; v++) {
                Words raw = load<Words>(weight + (q * kStrip + v * kLanes) * 4);
                for (int r = 0; r < R; r++) {
                    const int8_t* integers = x[r].integers + group * kGroup + q * 4;
                    low[r][v] = pair_sums(low[r][v], raw & 0x0f0f0f0fu, quad_of(integers));
                    low[r][v] = pair_sums(low[r][v], raw >> 4 & 0x0f0f0f0fu, quad_of(integers + kGroup / 2));
                }
            }
    } else {
        for (int q = 0; q < kQuads; q++)
            for (int v = 0; v < V; v++) {
                Words raw = load<Words>(weight + (q * kStrip + v * kLanes) * 4);
                for (int r = 0; r < R; r++) {
                    Ints quad = quad_of(x[r].integers + group * kGroup + q * 4);
                    low[r][v] = pair_sums(low[r][v], raw & 0x0f0f0f0fu, quad);
                    high[r][v] = pair_sums(high[r][v], raw >> 4 & 0x0f0f0f0fu, quad);
                }
            }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            sums[r][v] = splat(x[r].begins[group]) + halves_added(low[r][v], 1);
            if (Weight::kPerByte == 1) sums[r][v] += halves_added(high[r][v], 16);
        }
}

#endif

template <class Weight, int R, int V>
void int_block(const unsigned char* weight, const IntRow (&x)[R], int64_t depth, const float* bias, int64_t column,
               float* y, int64_t ldy, int64_t left, bool add, const unsigned char* ahead) {
    constexpr int64_t kFetched = int_group_bytes<Weight> * V * kLanes / kStrip;
    Floats sums[R][V] = {};
    for (int64_t group = 0; group < depth / kGroup; group++, weight += int_group_bytes<Weight>) {
        if (ahead) {
            fetch<V * kLanes>(ahead, kFetched);
            ahead += kFetched;
        }
        Ints whole[R][V];
        group_sums<Weight, R, V>(weight + column * 4, x, group, whole);
        for (int v = 0; v < V; v++) {
            Floats scale = from_bf16(load<Halves>(weight + Weight::kBytes + (column + v * kLanes) * 2));
            for (int r = 0; r < R; r++)
                sums[r][v] = fma(to_floats(whole[r][v]) * splat(x[r].scales[group]), scale, sums[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            if (v * kLanes < left) put(y + r * ldy + v * kLanes, sums[r][v], bias + v * kLanes, left - v * kLanes, add);
}

// Rows per pass, and vectors per pass for that many rows.
#if defined(__AVX512F__)
constexpr int kIntRows = 8;
constexpr int int_vectors(int rows) { return rows <= 3 ? 4 : 2; }
#else
constexpr int kIntRows = 4;
constexpr int int_vectors(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#endif

// `unread`: the strip's bytes that nothing has read yet, all or 0.
template <class Weight, int R>
void int_rows(int64_t rows, const unsigned char* weight, const unsigned char* scratch, int64_t row_bytes, int64_t depth,
              const float* bias, float* y, int64_t ldy, int64_t left, bool add, int64_t unread) {
    if constexpr (R > 1) {
        if (rows < R)
            return int_rows<Weight, R - 1>(rows, weight, scratch, row_bytes, depth, bias, y, ldy, left, add, unread);
    }
    constexpr int V = int_vectors(R);
    IntRow x[R];
    for (int r = 0; r < R; r++) x[r] = IntRow(scratch + r * row_bytes, depth);
    for (int64_t column = 0; column < least(left, kStrip); column += V * kLanes) {
        const unsigned char* ahead = unread ? fetched_from(weight, unread, column, V * kLanes) : nullptr;
        int_block<Weight, R, V>(weight, x, depth, bias + column, column, y + column, ldy, left - column, add, ahead);
    }
}

template <class Weight>
void int_run(const Product* p, const unsigned char* scratch, int64_t rows, float* y, int64_t ldy, bool add,
             Share strips) {
    const int64_t row_bytes = int_row_bytes(p);
    const Blocks blocks(rows, kIntRows);
    for (int64_t strip = strips.begin; strip < strips.end; strip++)
        for (int64_t block = 0; block < blocks.count; block++) {
            const int64_t row = blocks.begin(block), count = blocks.begin(block + 1) - row, column = strip * kStrip;
            int_rows<Weight, kIntRows>(count, p->weight + strip * p->strip_bytes, scratch + row * row_bytes, row_bytes,
                                       p->depth, p->bias + column, y + row * ldy + column, ldy, p->out - column, add,
                                       block ? 0 : p->strip_bytes);
        }
}

}  // namespace
}  // namespace SPECDEC_VARIANT
