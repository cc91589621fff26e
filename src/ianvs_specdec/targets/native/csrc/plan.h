// The plan of a step, computed and checked before anything is changed.
#pragma once

#include <vector>

#include "attention.h"
#include "memory.h"
#include "specdec.h"

namespace SPECDEC_VARIANT {

// Sizes of a model.
struct Sizes {
  int64_t layers, hidden, queries, keys, width, rotary, vocabulary;
  int64_t inner;      // of the widest MLP
  int64_t rotations;  // per row, from its own first one on

  int64_t group() const { return queries / keys; }  // query heads that share a key head
  int64_t qkv() const { return (queries + 2 * keys) * width; }
};

// One row of a step.
struct Row {
  Sequence *sequence;
  int64_t position, slot;  // in the sequence, and of its keys and values
  int64_t common;          // see Query
  int64_t path, depth;     // start and length of its path in Plan::paths; 0: all slots are their positions
  int32_t rotation;        // see specdec_part
};

// A unit of attention for one thread: `count` queries from `first` of one key head, where the queries
// of rows Plan::...[begin], [begin + 1], ... follow each other, each with its whole group.
struct Unit {
  int64_t begin, first, count, head;
};

// Rows to compute, in the last layer possibly fewer, and the units of their attention.
struct Chosen {
  std::vector<int64_t> rows;
  std::vector<Unit> units;
};

// A sequence after the step.
struct After {
  Sequence *sequence;
  int64_t length;
  std::vector<int32_t> parents, depths;
};

struct Plan {
  // SPECDEC_OK or the error. Reserves pages for all rows.
  int32_t make(const specdec_step &step, const Sizes &sizes);
  // Append the rows to their sequences, after their keys and values are computed.
  void finish();

  std::vector<Row> rows;
  std::vector<int32_t> paths;
  Chosen all, ends;                 // of every layer but the last; of the last layer after its keys and values
  std::vector<int64_t> with_logits;  // indices into `ends.rows`

 private:
  int32_t add(const specdec_part &part, const Sizes &sizes);
  int32_t add_tree(const specdec_part &part, After &after);
  void choose(const specdec_part &part, int64_t begin, const Sizes &sizes);

  std::vector<After> after_;
};

}  // namespace SPECDEC_VARIANT
