// bfloat16 products in tiles of AMX: 16 rows of activations times 16 outputs, 32 inputs at once.
//
// An activation is split into two bfloat16, the nearest one and the nearest to the remainder. They are two rows of a
// tile, and their products are added at the end, so activations keep 16 bits of precision. A single row still takes no
// longer than reading the weights. Rows of a tile are independent: a row's bits do not depend on the others.
#pragma once

#if defined(__AMX_BF16__)

#include <sys/syscall.h>
#include <unistd.h>

#include "products_float.h"

namespace SPECDEC_VARIANT {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileColumns = 16;                          // lanes of 32 bits
constexpr int kParts = 2;                                 // bfloat16 that make up an activation
constexpr int kTileInputs = 32;                           // bfloat16 in a tile's row
constexpr int64_t kStepBytes = kTileInputs * kStrip * 2;  // of a strip for these inputs
constexpr int64_t kTileAhead = 2 * kStepBytes;

// Request the tile registers from the system, once per process. `runnable` has checked that they are granted.
inline void allow_tiles() {
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    syscall(SYS_arch_prctl, kRequest, kTileData);
}

// Operand of the instruction: bytes and number of each tile's rows.
struct alignas(64) TileConfig {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

constexpr TileConfig kTileConfig = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// During its lifetime, this thread's eight tiles have 16 rows of 64 bytes each.
struct Tiles {
    Tiles() {
        // GCC does not know that loading a tile reads memory: what was written before has to be there.
        __asm__ volatile("" ::: "memory");
        _tile_loadconfig(&kTileConfig);
    }
    ~Tiles() { _tile_release(); }
};

// In both: tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights; free ones hold further weights.
//
// sums [16, 64] of one tile of rows.
inline void tile_by_four(const unsigned char* weight, const unsigned char* x, int64_t stride, int64_t steps,
                         float* sums) {
    constexpr int64_t kAcross = kStrip * 4, kTile = kTileColumns * 4;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < steps; step++, weight += kStepBytes, x += kTileInputs * 2) {
        fetch<kStrip>(weight + kTileAhead, kStepBytes);
        _tile_loadd(4, x, stride);
        _tile_loadd(5, weight, kAcross);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, weight + kTile, kAcross);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, weight + 2 * kTile, kAcross);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, weight + 3 * kTile, kAcross);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, sums, kAcross);
    _tile_stored(1, sums + kTileColumns, kAcross);
    _tile_stored(2, sums + 2 * kTileColumns, kAcross);
    _tile_stored(3, sums + 3 * kTileColumns, kAcross);
}

// sums [32, 64] of two tiles of rows, of which columns 0 to 31 are written. `first`: nothing has read the strip yet.
template <bool first>
inline void two_by_two(const unsigned char* weight, const unsigned char* x, int64_t stride, int64_t steps,
                       float* sums) {
    constexpr int64_t kAcross = kStrip * 4, kTile = kTileColumns * 4;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < steps; step++, weight += kStepBytes, x += kTileInputs * 2) {
        if (first) fetch<kStrip>(weight + kTileAhead, kStepBytes);
        _tile_loadd(4, x, stride);
        _tile_loadd(6, weight, kAcross);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, weight + kTile, kAcross);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x + kTileRows * stride, stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, kAcross);
    _tile_stored(1, sums + kTileColumns, kAcross);
    _tile_stored(2, sums + kTileRows * kStrip, kAcross);
    _tile_stored(3, sums + kTileRows * kStrip + kTileColumns, kAcross);
}

struct TileProduct {
    static int64_t strip_bytes(int64_t depth) { return FloatProduct<AsBf16>::strip_bytes(depth); }
    static int64_t row_bytes(const Product* p) { return row_stride(p->depth * 2); }
    static int64_t scratch(const Product* p, int64_t rows) {
        return round_up(rows * kParts, 2 * kTileRows) * row_bytes(p);
    }
    static void pack(const Product* p, const float* rows, unsigned char* strip) {
        FloatProduct<AsBf16>::pack(p, rows, strip);
    }

    static void prepare(const Product* p, const float* x, int64_t ldx, Share rows, unsigned char* scratch) {
        for (int64_t row = rows.begin; row < rows.end; row++) {
            unsigned char* near = scratch + row * kParts * row_bytes(p);
            unsigned char* rest = near + row_bytes(p);
            for (int64_t k = 0; k < p->depth; k += kLanes) {
                float padded[kLanes] = {};
                const float* from = x + row * ldx + k;
                if (p->in - k < kLanes) from = (const float*)memcpy(padded, from, p->in > k ? (p->in - k) * 4 : 0);
                const Floats value = load<Floats>(from);
                const Halves rounded = to_bf16(value);
                store(near + k * 2, rounded);
                if (kParts == 2) store(rest + k * 2, to_bf16(value - from_bf16(rounded)));
            }
        }
    }

    static void run(const Product* p, const unsigned char* scratch, int64_t rows, float* y, int64_t ldy, bool add,
                    Share strips) {
        constexpr int64_t kMost = 2 * kTileRows / kParts;
        const int64_t stride = row_bytes(p), steps = p->depth / kTileInputs;
        alignas(64) float sums[2 * kTileRows * kStrip];
        const Tiles tiles;
        for (int64_t strip = strips.begin; strip < strips.end; strip++) {
            const unsigned char* weight = p->weight + strip * p->strip_bytes;
            const int64_t column = strip * kStrip, left = least(p->out - column, kStrip);
            for (int64_t row = 0; row < rows; row += kMost) {
                const unsigned char* x = scratch + row * kParts * stride;
                const int64_t count = least(rows - row, kMost);
                float* to = y + row * ldy + column;
                for (int64_t r = 0; r < count; r++)
                    for (int64_t c = 0; c < left; c += kLanes) __builtin_prefetch(to + r * ldy + c, 1);
                if (count * kParts <= kTileRows) {
                    tile_by_four(weight, x, stride, steps, sums);
                } else {
                    const auto left_half = row == 0 ? two_by_two<true> : two_by_two<false>;
                    left_half(weight, x, stride, steps, sums);
                    if (left > kStrip / 2) two_by_two<false>(weight + kStrip * 2, x, stride, steps, sums + kStrip / 2);
                }
                for (int64_t r = 0; r < count; r++)
                    for (int64_t c = 0; c < left; c += kLanes) {
                        const float* at = sums + r * kParts * kStrip + c;
                        Floats sum = load<Floats>(at);
                        if (kParts == 2) sum += load<Floats>(at + kStrip);
                        put(to + r * ldy + c, sum, p->bias + column + c, left - c, add);
                    }
            }
        }
    }
};

}  // namespace
}  // namespace SPECDEC_VARIANT

#endif
