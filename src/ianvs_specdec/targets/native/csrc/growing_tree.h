// A dynamic tree under construction (EAGLE-2, Li et al. 2024, arXiv 2406.16858): the candidates with the highest
// cumulative probability.
#pragma once

#include <vector>

#include "specdec_heads.h"

namespace SPECDEC_VARIANT {

// Each level takes `width` children of each node in a beam of the `width` best. Candidates that
// cannot be in the tree are not expanded: levels or siblings beyond its size, children of its last node or worse ones.
//
// Candidates are numbered by level, within a level by the order of the parents, then by rank.
class GrowingTree {
 public:
  GrowingTree(specdec_draft &draft, int64_t vocabulary);

  // Add the candidates below the beam, given its logits [rows, vocabulary]. `ids` maps them to ids of the target.
  void add(const float *logits, const int64_t *ids);
  // Whether another level is needed; its `tokens` are the beam, children of the rows `above`.
  bool go_on();
  // Write the result.
  void finish();

  int32_t rows() const { return static_cast<int32_t>(beam_.size()); }

  specdec_draft &draft;
  std::vector<int64_t> tokens, above;

 private:
  void raise_bar(std::size_t first);

  const int64_t vocabulary_;
  const int width_;
  const int32_t levels_;
  double bar_;  // minimum score of a candidate that can be in the tree
  int32_t level_ = 0;
  std::size_t first_ = 0;              // first candidate of the last level
  std::vector<float> scores_;          // of all candidates
  std::vector<int64_t> candidates_;    // their tokens
  std::vector<int32_t> origins_;       // the parent of each; -1: the root
  std::vector<float> best_;            // the scores of the `nodes` best
  std::vector<int32_t> beam_;          // candidates to expand; -1: the root
};

}  // namespace SPECDEC_VARIANT
