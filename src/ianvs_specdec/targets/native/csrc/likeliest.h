// The likeliest tokens of a row of logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "vectors.h"

namespace SPECDEC_VARIANT {

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// The `width` greatest of `count` numbers, best first, ties in order. NaNs are allowed.
inline void greatest(const float *from, int64_t count, int width, float *values, int64_t *places) {
  constexpr int64_t BLOCK = 4 * LANES;
  int have = 0;
  const auto look_at = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      if (have == width && !(from[i] > values[width - 1])) continue;
      int at = have < width ? have++ : width - 1;
      for (; at > 0 && values[at - 1] < from[i]; at--) values[at] = values[at - 1], places[at] = places[at - 1];
      values[at] = from[i], places[at] = i;
    }
  };
  int64_t i = 0;
  for (; i + BLOCK <= count; i += BLOCK) {
    const Vector most = larger(larger(load(from + i), load(from + i + LANES)),
                               larger(load(from + i + 2 * LANES), load(from + i + 3 * LANES)));
    // A comparison with NaN is false, so its block is searched.
    if (have < width || !(largest(most) <= values[width - 1])) look_at(i, i + BLOCK);
  }
  look_at(i, count);
}

// log(sum of exp(x - most)).
inline float log_sum(const float *from, int64_t count, float most) {
  Vector total{};
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) total += exponential(load(from + i) - most);
  float sum_of_rest = 0;
  const Vector rest = exponential(load_some(from + i, count - i) - most);
  for (int64_t lane = 0; lane < count - i; lane++) sum_of_rest += rest[lane];
  return std::log(sum(total) + sum_of_rest);
}

// The `width` likeliest tokens and their log-probabilities; -infinity for NaNs.
inline void likeliest(const float *logits, int64_t vocabulary, int width, float *values, int64_t *places) {
  greatest(logits, vocabulary, width, values, places);
  const float most = values[0], rest = log_sum(logits, vocabulary, most);
  for (int i = 0; i < width; i++) {
    const float value = values[i] - most - rest;
    values[i] = std::isnan(value) ? NOTHING : value;
  }
}

}  // namespace SPECDEC_VARIANT
