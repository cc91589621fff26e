// Vectors of the widest type of the instruction set, and functions of them.
//
// A fused multiply-add is always written as `fused`: compilers are told not to make any of their own, so that two pieces
// of code that compute the same sum round it alike.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace SPECDEC_VARIANT {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__FMA__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));

inline Vector load(const float *from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float *to, Vector v) { std::memcpy(to, &v, sizeof v); }

// The first `count` lanes; the others are 0.
inline Vector load_some(const float *from, int64_t count) {
  Vector v{};
  std::memcpy(&v, from, count * sizeof(float));
  return v;
}

inline void store_some(float *to, Vector v, int64_t count) { std::memcpy(to, &v, count * sizeof(float)); }

inline Vector fused(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
  return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
  return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// x - 0 is x, even where x is -0, so compilers need no subtraction.
inline Vector spread(float x) { return x - Vector{}; }

inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }

inline float sum(Vector v) {
  float total = 0;
  for (int lane = 0; lane < LANES; lane++) total += v[lane];
  return total;
}

inline float largest(Vector v) {
  float most = v[0];
  for (int lane = 1; lane < LANES; lane++) most = v[lane] > most ? v[lane] : most;
  return most;
}

// exp(x) with a relative error of some 1e-7; what lies below the smallest normal number becomes that number. x = n ln 2
// + r with |r| <= ln 2 / 2, ln 2 in two parts (Cody and Waite), and the Taylor series of exp(r).
inline Vector exponential(Vector x) {
  constexpr float SMALLEST = -87.33654f, GREATEST = 88.37626f;
  constexpr float PER_LN2 = 1.44269504f, LN2_HIGH = 0.693145752f, LN2_LOW = 1.42860677e-6f;
  constexpr int32_t EXPONENT_BIAS = 127, FRACTION_BITS = 23;
  x = x < SMALLEST ? spread(SMALLEST) : x;
  x = x > GREATEST ? spread(GREATEST) : x;
  const Vector t = x * PER_LN2;
  const Integers n = __builtin_convertvector(t + (t < 0.0f ? spread(-0.5f) : spread(0.5f)), Integers);
  const Vector whole = __builtin_convertvector(n, Vector);
  const Vector r = fused(whole, spread(-LN2_LOW), fused(whole, spread(-LN2_HIGH), x));
  Vector p = spread(1.0f / 720);
  p = fused(p, r, spread(1.0f / 120));
  p = fused(p, r, spread(1.0f / 24));
  p = fused(p, r, spread(1.0f / 6));
  p = fused(p, r, spread(0.5f));
  p = fused(p, r, spread(1.0f));
  p = fused(p, r, spread(1.0f));
  const Integers power = (n + EXPONENT_BIAS) << FRACTION_BITS;
  Vector scale;
  std::memcpy(&scale, &power, sizeof scale);
  return p * scale;
}

// tanh(x) with a relative error of some 1e-7: a polynomial near 0 (Cephes), where the exponential would lose digits.
inline Vector hyperbolic_tangent(Vector x) {
  constexpr float SMALL = 0.625f;
  const Vector square = x * x, far = 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f);
  Vector p = spread(-5.70498872745e-3f);
  p = fused(p, square, spread(2.06390887954e-2f));
  p = fused(p, square, spread(-5.37397155531e-2f));
  p = fused(p, square, spread(1.33314422036e-1f));
  p = fused(p, square, spread(-3.33332819422e-1f));
  const Vector near = fused(p * square, x, x);
  return square < SMALL * SMALL ? near : far;
}

}  // namespace SPECDEC_VARIANT
