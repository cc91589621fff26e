// Sums of products that stay in registers: R rows of factors times V vectors, all of them at each step of a loop.
//
// The products of a step are listed by a parameter pack and not looped over, in a function that stands alone: for some
// numbers of rows compilers left the sums of loops in memory, and such a block took twice as long.
#pragma once

#include <utility>

namespace SPECDEC_VARIANT {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

// Product number `Each`: its row, its vector, and which of two places holds the vector. Two vectors are loaded at a time
// if there are registers for them beside the sums and the factors, each of them before its first row.
template <int R, int V, int Each>
struct Tile {
    static constexpr int kTogether = V % 2 == 0 && (V == 2 || R * V + R + 2 <= kRegisters) ? 2 : 1;
    static constexpr int kPlace = Each % kTogether, kRow = Each / kTogether % R;
    static constexpr int kVector = Each / (kTogether * R) * kTogether + kPlace;
};

template <int R, int V>
using TileProducts = std::make_integer_sequence<int, R * V>;

}  // namespace SPECDEC_VARIANT
