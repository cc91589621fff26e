// Sums of products in registers: R rows of factors times V vectors in each step of a loop.
//
// The products of a step are expanded from a parameter pack in a separate function: with loops, compilers kept the sums
// in memory for some numbers of rows, which took twice as long.
#pragma once

#include <utility>

namespace SPECDEC_VARIANT {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

// Row and vector of product number `Each`, and which of two registers has the vector. Two vectors are loaded at a time
// if there are registers for them besides the sums and the factors, each before its first row.
template <int R, int V, int Each>
struct Tile {
    static constexpr int kTogether = V % 2 == 0 && (V == 2 || R * V + R + 2 <= kRegisters) ? 2 : 1;
    static constexpr int kPlace = Each % kTogether, kRow = Each / kTogether % R;
    static constexpr int kVector = Each / (kTogether * R) * kTogether + kPlace;
};

template <int R, int V>
using TileProducts = std::make_integer_sequence<int, R * V>;

}  // namespace SPECDEC_VARIANT
