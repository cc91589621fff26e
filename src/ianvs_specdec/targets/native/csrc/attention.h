// Attention of a few queries that share their keys: rows of one sequence, and the query heads of one key head.
//
// A row attends to the committed positions and its own ancestors in the tree. Scores are in the order of positions, as if
// the path had been decoded token by token, and so is every sum.
#pragma once

#include <algorithm>
#include <vector>

#include "memory.h"
#include "rows.h"
#include "tile.h"
#include "vectors.h"

namespace SPECDEC_VARIANT {

// Maximum number of queries per call.
constexpr int QUERIES = 6;

// Vectors per pass for that many queries: enough sums to hide the latency of an addition, few enough for the registers.
constexpr int columns_of(int queries) {
  return kRegisters == 32 ? 4 : queries == 1 ? 8 : queries <= 3 ? 4 : 2;
}

// One query: a row's head.
struct Query {
  const float *query;  // [width], rotated and scaled
  float *attended;     // [width]
  int64_t first;       // the first position that it sees
  int64_t common;      // positions whose slot is their index: committed ones, and the ancestors in a chain
  const int32_t *path; // of a row in a tree: its ancestors and itself, as indices of drafted rows
  int64_t depth;       // length of `path`
};

// Buffers of one thread.
struct AttentionScratch {
  std::vector<float> scores, sums;
};

template <int M, int C, int Each>
__attribute__((always_inline)) inline void add_product(const float *const *factors, const float *rows, int64_t i,
                                                       Vector (&row)[2], Vector (&total)[M][C]) {
  using At = Tile<M, C, Each>;
  if constexpr (At::kRow == 0) row[At::kPlace] = load(rows + At::kVector * LANES);
  Vector &sum = total[At::kRow][At::kVector];
  sum = fused(spread(factors[At::kRow][i]), row[At::kPlace], sum);
}

// sums[m][j] += sum over i of factors[m][i] * rows[i][j], for M queries and C vectors j, in the order of i.
template <int M, int C, int... Each>
__attribute__((noinline)) void outer(std::integer_sequence<int, Each...>, const float *const *factors,
                                     const float *rows, int64_t stride, int64_t count, float *const *sums,
                                     int64_t column) {
  const float *of[M];
  Vector total[M][C];
  for (int m = 0; m < M; m++) {
    of[m] = factors[m];
    for (int j = 0; j < C; j++) total[m][j] = load(sums[m] + column + j * LANES);
  }
  rows += column;
  for (int64_t i = 0; i < count; i++, rows += stride) {
    Vector row[2];
    (add_product<M, C, Each>(of, rows, i, row, total), ...);
  }
  for (int m = 0; m < M; m++)
    for (int j = 0; j < C; j++) store(sums[m] + column + j * LANES, total[m][j]);
}

// The same for `columns` numbers, a multiple of LANES; the remainder uses fewer vectors.
template <int M, int C = columns_of(M)>
void add_outer(const float *const *factors, const float *rows, int64_t stride, int64_t count, float *const *sums,
               int64_t columns, int64_t column = 0) {
  for (; column + C * LANES <= columns; column += C * LANES)
    outer<M, C>(TileProducts<M, C>(), factors, rows, stride, count, sums, column);
  if constexpr (C > 1) {
    if (column < columns) add_outer<M, C / 2>(factors, rows, stride, count, sums, columns, column);
  }
}

inline void add_outer(int queries, const float *const *factors, const float *rows, int64_t stride, int64_t count,
                      float *const *sums, int64_t columns) {
  switch (queries) {
    case 1: return add_outer<1>(factors, rows, stride, count, sums, columns);
    case 2: return add_outer<2>(factors, rows, stride, count, sums, columns);
    case 3: return add_outer<3>(factors, rows, stride, count, sums, columns);
    case 4: return add_outer<4>(factors, rows, stride, count, sums, columns);
    case 5: return add_outer<5>(factors, rows, stride, count, sums, columns);
    default: return add_outer<QUERIES>(factors, rows, stride, count, sums, columns);
  }
}

// Turns scores of `count` positions into exp(score - greatest) and returns 1 / their sum.
inline float soften(float *scores, int64_t count) {
  const int64_t padded = (count + LANES - 1) / LANES * LANES;
  for (int64_t t = count; t < padded; t++) scores[t] = scores[0];
  Vector most = load(scores);
  for (int64_t t = LANES; t < padded; t += LANES) most = larger(load(scores + t), most);
  const Vector greatest = spread(largest(most));
  Vector total{};
  for (int64_t t = 0; t + LANES <= count; t += LANES) {
    const Vector power = exponential(load(scores + t) - greatest);
    store(scores + t, power);
    total += power;
  }
  if (padded != count) {
    const int64_t whole = padded - LANES;
    store(scores + whole, exponential(load(scores + whole) - greatest));
    total += load_some(scores + whole, count - whole);
  }
  return 1.0f / sum(total);
}

// At most QUERIES queries; slots below `slots` hold what any of them sees. `most`: see cap.
inline void attend(const Sequence &sequence, const PageShape &shape, int64_t layer, int64_t head, const Query *queries,
                   int count, int64_t slots, float most, AttentionScratch &scratch) {
  int64_t shared = slots, begin = slots, all_see = 0;
  const float *factors[QUERIES];
  for (int m = 0; m < count; m++) {
    factors[m] = queries[m].query;
    shared = std::min(shared, queries[m].common);
    begin = std::min(begin, queries[m].first);
    all_see = std::max(all_see, queries[m].first);
  }
  // The slot of a row is at or after its position, so all keys are in the page of the first position or later ones.
  const int64_t base = begin / PAGE * PAGE, pages = (slots - base + PAGE - 1) / PAGE, padded = shape.padded;
  const int64_t stride = pages * PAGE + LANES;  // for what soften pads
  scratch.scores.assign(count * stride, 0.0f);
  scratch.sums.assign(count * padded, 0.0f);
  float *scores[QUERIES], *sums[QUERIES], *at[QUERIES];  // the score of slot or position i is scores[m][i - base]
  for (int m = 0; m < count; m++) {
    scores[m] = scratch.scores.data() + m * stride;
    sums[m] = scratch.sums.data() + m * padded;
  }
  for (int64_t page = 0; page < pages; page++) {
    for (int m = 0; m < count; m++) at[m] = scores[m] + page * PAGE;
    add_outer(count, factors, sequence.page(base + page * PAGE) + shape.keys(layer, head), PAGE, shape.width, at, PAGE);
  }
  float inverse[QUERIES];
  for (int m = 0; m < count; m++) {
    const Query &query = queries[m];
    const int64_t drafted = query.common - base, end = query.common + query.depth;
    for (int64_t i = std::max<int64_t>(query.first - query.common, 0); i < query.depth; i++)
      scores[m][drafted + i] = scores[m][drafted + query.path[i]];
    float *seen = scores[m] + query.first - base;
    cap(seen, most, end - query.first);
    inverse[m] = soften(seen, end - query.first);
  }
  const auto values = [&](int64_t slot) {
    return sequence.page(slot) + shape.values(layer, head) + slot % PAGE * padded;
  };
  // The positions from `from` to `to`, whose slots are their indices.
  const auto weigh = [&](int first, int last, int64_t from, int64_t to) {
    for (int64_t next; from < to; from = next) {
      next = std::min(to, (from / PAGE + 1) * PAGE);
      for (int m = first; m < last; m++) at[m] = scores[m] + from - base;
      add_outer(last - first, at + first, values(from), padded, next - from, sums + first, padded);
    }
  };
  for (int m = 0; m < count; m++) weigh(m, m + 1, queries[m].first, std::min(all_see, shared));
  weigh(0, count, all_see, shared);
  for (int m = 0; m < count; m++) {
    const Query &query = queries[m];
    weigh(m, m + 1, std::max(query.first, shared), query.common);
    for (int64_t i = std::max<int64_t>(query.first - query.common, 0); i < query.depth; i++) {
      const float *factor = scores[m] + query.common - base + i;
      add_outer<1>(&factor, values(query.common + query.path[i]), padded, 1, sums + m, padded);
    }
    for (int64_t i = 0; i < shape.width; i++) query.attended[i] = sums[m][i] * inverse[m];
  }
}

}  // namespace SPECDEC_VARIANT
