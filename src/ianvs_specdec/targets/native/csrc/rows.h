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

// work(x) in place of each of `count` numbers.
template <class Work>
void change(float *x, int64_t count, Work work) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(x + i, work(load(x + i)));
  store_some(x + i, work(load_some(x + i, count - i)), count - i);
}

// Without an effect where nothing would change.
inline void scale(float *x, float factor, int64_t count) {
  if (factor != 1.0f) change(x, count, [&](Vector some) { return some * factor; });
}

// Soft cap (Gemma Team 2024, arXiv 2408.00118); 0: none.
inline void cap(float *x, float most, int64_t count) {
  if (most != 0.0f) change(x, count, [&](Vector some) { return hyperbolic_tangent(some / most) * most; });
}

inline Vector silu(Vector x) { return x / (1.0f + exponential(-x)); }

// GELU's approximation by tanh (Hendrycks and Gimpel 2016, arXiv 1606.08415): (1 + tanh u) / 2 = 1 / (1 + exp -2u).
inline Vector gelu_tanh(Vector x) {
  constexpr float TWICE_ROOT = 1.59576912f, CUBIC = 0.044715f;  // 2 sqrt(2 / pi)
  return x / (1.0f + exponential(-TWICE_ROOT * (x + CUBIC * x * x * x)));
}

// active(gate) * up in place of the gate; `up` follows it.
template <class Active>
void activate(float *gate, int64_t count, Active active) {
  const float *up = gate + count;
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(gate + i, active(load(gate + i)) * load(up + i));
  store_some(gate + i, active(load_some(gate + i, count - i)) * load_some(up + i, count - i), count - i);
}

inline void activate(float *gate, int64_t count, int32_t kind) {
  kind == SPECDEC_SILU ? activate(gate, count, silu) : activate(gate, count, gelu_tanh);
}

// to += factor * from.
inline void add_scaled(const float *from, float factor, int64_t count, float *to) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(to + i, fused(load(from + i), spread(factor), load(to + i)));
  const Vector rest = fused(load_some(from + i, count - i), spread(factor), load_some(to + i, count - i));
  store_some(to + i, rest, count - i);
}

// to += silu(from).
inline void add_active(const float *from, int64_t count, float *to) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(to + i, load(to + i) + silu(load(from + i)));
  store_some(to + i, load_some(to + i, count - i) + silu(load_some(from + i, count - i)), count - i);
}

// Logits of experts become the factors of the `chosen` likeliest, of equals the first, and 0 for the others. With
// `normalize_chosen` they are divided by their sum.
inline void choose_experts(float *logits, int64_t count, int32_t chosen, bool normalize_chosen) {
  float most = logits[0], total = 0.0f, kept = 0.0f;
  for (int64_t i = 1; i < count; i++) most = logits[i] > most ? logits[i] : most;
  for (int64_t i = 0; i < count; i++) total += logits[i] = std::exp(logits[i] - most);
  // What was chosen is marked by its sign.
  for (int32_t turn = 0; turn < chosen; turn++) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++) best = logits[i] > logits[best] ? i : best;
    kept += logits[best];
    logits[best] = -logits[best];
  }
  const float divisor = normalize_chosen ? kept : total;
  for (int64_t i = 0; i < count; i++) logits[i] = logits[i] < 0.0f ? -logits[i] / divisor : 0.0f;
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
