// What is computed row by row between the products: norms, rotations, activations, embeddings.
#pragma once

#include <cmath>

#include "specdec.h"
#include "vectors.h"

namespace SPECDEC_VARIANT {

// Root-mean-square norm (Zhang and Sennrich 2019, arXiv 1910.07467) of `count` numbers; `to` may be `from`.
inline void norm(const float *from, const float *weight, float epsilon, int64_t count, float *to) {
  Vector squares{};
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) squares = fused(load(from + i), load(from + i), squares);
  const Vector rest = load_some(from + i, count - i);
  squares = fused(rest, rest, squares);
  const float factor = 1.0f / std::sqrt(sum(squares) / static_cast<float>(count) + epsilon);
  for (i = 0; i + LANES <= count; i += LANES) store(to + i, load(from + i) * factor * load(weight + i));
  for (; i < count; i++) to[i] = from[i] * factor * weight[i];
}

// Rotary position embedding (Su et al. 2021, arXiv 2104.09864) as Hugging Face stores it: the first half of the head
// against the second. The result is multiplied by `scale`.
inline void rotate(float *head, const float *cosine, const float *sine, float scale, int64_t half) {
  int64_t i = 0;
  for (; i + LANES <= half; i += LANES) {
    const Vector a = load(head + i), b = load(head + half + i), c = load(cosine + i), s = load(sine + i);
    store(head + i, fused(a, c, -(b * s)) * scale);
    store(head + half + i, fused(b, c, a * s) * scale);
  }
  const int64_t left = half - i;
  const Vector a = load_some(head + i, left), b = load_some(head + half + i, left);
  const Vector c = load_some(cosine + i, left), s = load_some(sine + i, left);
  store_some(head + i, fused(a, c, -(b * s)) * scale, left);
  store_some(head + half + i, fused(b, c, a * s) * scale, left);
}

inline Vector gated(Vector gate, Vector up) { return gate / (1.0f + exponential(-gate)) * up; }

// silu(gate) * up in place of the gate; `up` lies behind it.
inline void activate(float *gate, int64_t count) {
  const float *up = gate + count;
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(gate + i, gated(load(gate + i), load(up + i)));
  store_some(gate + i, gated(load_some(gate + i, count - i), load_some(up + i, count - i)), count - i);
}

// to += silu(from).
inline void add_active(const float *from, int64_t count, float *to) {
  const auto active = [](Vector x) { return x / (1.0f + exponential(-x)); };
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(to + i, load(to + i) + active(load(from + i)));
  store_some(to + i, load_some(to + i, count - i) + active(load_some(from + i, count - i)), count - i);
}

inline float from_bf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// IEEE 754 half precision without an instruction for it.
inline float from_f16(uint16_t x) {
  const uint32_t sign = (x & 0x8000u) << 16, exponent = (x >> 10) & 31u, fraction = x & 1023u;
  float value;
  if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), -24);
    return sign ? -value : value;
  }
  const uint32_t bits = sign | (exponent == 31u ? 255u : exponent + 112u) << 23 | fraction << 13;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Row `index` of an embedding [vocabulary, count] of type `kind`.
inline void look_up(const void *embedding, int32_t kind, int64_t index, int64_t count, float *to) {
  if (kind == SPECDEC_F32) {
    std::memcpy(to, static_cast<const float *>(embedding) + index * count, count * sizeof(float));
    return;
  }
  const uint16_t *row = static_cast<const uint16_t *>(embedding) + index * count;
  for (int64_t i = 0; i < count; i++) to[i] = kind == SPECDEC_BF16 ? from_bf16(row[i]) : from_f16(row[i]);
}

}  // namespace SPECDEC_VARIANT
