// Memory layout of a packed weight, and how outputs are written.
//
// The outputs are cut into strips of 64. A strip is one stream of bytes that a product with one row reads from begin to
// end: all inputs of its 64 outputs, in steps of as many inputs as one 32-bit lane holds.
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
    float* bias;          // [strips * kStrip], behind the weight
    int64_t bytes;        // of both
};

namespace {

constexpr int kStrip = 64;       // outputs: four vectors of AVX-512, four tiles of AMX
constexpr int kDepthUnit = 32;   // inputs: a group of the integer kinds, a tile of AMX
constexpr int64_t kLine = 64;    // bytes of a cache line
constexpr int64_t kPage = 4096;  // rows this far apart share the few places of one cache set

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Bytes from one row to the next, so that rows do not compete for places in the cache.
constexpr int64_t row_stride(int64_t bytes) {
    int64_t stride = round_up(bytes, kLine);
    return stride % kPage == 0 ? stride + kLine : stride;
}

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// The share [begin, end) of `thread` in `count` things.
struct Share {
    int64_t begin, end;
    Share(int64_t count, int thread, int threads)
        : begin(count * thread / threads), end(count * (thread + 1) / threads) {}
};

// With few rows a product waits for its weights, which are therefore fetched while others are used. A pass over all
// outputs of a strip fetches what comes so many bytes later.
constexpr int64_t kAhead = 4096;

// Where a pass over `width` outputs from `column` on begins to fetch. Of several passes over a strip, each fetches its
// share of the next strip: if the first one fetched all of its own, it would wait, and the others would not fetch.
inline const unsigned char* fetched_from(const unsigned char* strip, int64_t strip_bytes, int64_t column, int width) {
    return strip + (width == kStrip ? kAhead : strip_bytes + strip_bytes * column / kStrip);
}

// Into the first-level cache what a single pass is about to read; into the second what a later pass reads, since a
// whole strip may be too much for the first.
template <int width>
inline void fetch(const unsigned char* from, int64_t bytes) {
    constexpr int kLocality = width == kStrip ? 3 : 2;
    for (int64_t line = 0; line < bytes; line += kLine) __builtin_prefetch(from + line, 0, kLocality);
}

// The first `left` elements of a vector to `y`. Out of line, so that the sums of a block stay in registers.
__attribute__((noinline)) inline void put_some(float* y, Floats sums, int64_t left, bool add) {
    for (int64_t lane = 0; lane < left; lane++) y[lane] = add ? y[lane] + sums[lane] : sums[lane];
}

// One vector of sums and its bias to `y`, of which `left` elements exist.
inline void put(float* y, Floats sums, const float* bias, int64_t left, bool add) {
    sums += load<Floats>(bias);
    if (left < kLanes) return put_some(y, sums, left, add);
    store(y, add ? load<Floats>(y) + sums : sums);
}

// Rows are cut into blocks of nearly equal size, none larger than `largest`.
struct Blocks {
    int64_t rows, count;
    Blocks(int64_t rows_, int64_t largest) : rows(rows_), count((rows_ + largest - 1) / largest) {}
    int64_t begin(int64_t block) const { return rows * block / count; }
};

}  // namespace
}  // namespace SPECDEC_VARIANT
