// Memory layout of a packed weight, and how outputs are written.
//
// Outputs are divided into strips of 64. A strip is one stream of bytes that a product with one row reads sequentially:
// all inputs of its 64 outputs, in steps of the inputs of one 32-bit lane.
#pragma once

#include "products.h"
#include "products_vector.h"

namespace SPECDEC_VARIANT {

struct Product {
    Kind kind;
    int64_t out, in;
    int64_t depth;        // `in`, padded with zeros to a multiple of kDepthUnit
    int64_t strips;       // of kStrip outputs, the last one padded with zeros
    int64_t strip_bytes;
    unsigned char* weight;
    float* bias;          // [strips * kStrip], after the weight
    int64_t bytes;        // of both
};

namespace {

constexpr int kStrip = 64;       // outputs: four vectors of AVX-512, four tiles of AMX
constexpr int kDepthUnit = 32;   // inputs: a group of the integer kinds, a tile of AMX
constexpr int64_t kLine = 64;    // bytes of a cache line
constexpr int64_t kPage = 4096;  // rows at this distance share one cache set

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Stride of rows in bytes that avoids conflicts in the cache.
constexpr int64_t row_stride(int64_t bytes) {
    int64_t stride = round_up(bytes, kLine);
    return stride % kPage == 0 ? stride + kLine : stride;
}

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// The share [begin, end) of `thread` of `count` items.
struct Share {
    int64_t begin, end;
    Share(int64_t count, int thread, int threads)
        : begin(count * thread / threads), end(count * (thread + 1) / threads) {}
};

// With few rows a product waits for its weights, which are therefore prefetched: a pass over all outputs of a strip
// prefetches the bytes at this distance.
constexpr int64_t kAhead = 4096;

// Start of the prefetches of a pass over `width` outputs from `column` on. Each of several passes over a strip
// prefetches its share of the next strip, so that no pass waits for all of them.
inline const unsigned char* fetched_from(const unsigned char* strip, int64_t strip_bytes, int64_t column, int width) {
    return strip + (width == kStrip ? kAhead : strip_bytes + strip_bytes * column / kStrip);
}

// Prefetch to the first-level cache for a single pass, to the second-level cache for a later one, since a strip may
// exceed the first.
template <int width>
inline void fetch(const unsigned char* from, int64_t bytes) {
    constexpr int kLocality = width == kStrip ? 3 : 2;
    for (int64_t line = 0; line < bytes; line += kLine) __builtin_prefetch(from + line, 0, kLocality);
}

// Store the first `left` elements of a vector. Not inlined, so that the sums of a block stay in registers.
__attribute__((noinline)) inline void put_some(float* y, Floats sums, int64_t left, bool add) {
    for (int64_t lane = 0; lane < left; lane++) y[lane] = add ? y[lane] + sums[lane] : sums[lane];
}

// Store one vector of sums plus bias to `y`, which has `left` elements.
inline void put(float* y, Floats sums, const float* bias, int64_t left, bool add) {
    sums += load<Floats>(bias);
    if (left < kLanes) return put_some(y, sums, left, add);
    store(y, add ? load<Floats>(y) + sums : sums);
}

// Divide rows into blocks of similar size, at most `largest`.
struct Blocks {
    int64_t rows, count;
    Blocks(int64_t rows_, int64_t largest) : rows(rows_), count((rows_ + largest - 1) / largest) {}
    int64_t begin(int64_t block) const { return rows * block / count; }
};

}  // namespace
}  // namespace SPECDEC_VARIANT
