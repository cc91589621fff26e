// A dynamic tree in the making (EAGLE-2, Li et al. 2024, arXiv 2406.16858): of all candidates those with the highest
// cumulative probability.
#pragma once

#include <vector>

#include "specdec_heads.h"

namespace SPECDEC_VARIANT {

// Each level takes `width` children of each node in a beam of the `width` best. What cannot be in the tree is not drafted
// on: more levels or siblings than it has nodes, and children of nodes that are its last already or below.
//
// A number among candidates counts level by level, within a level by the order of the parents, then by rank.
class GrowingTree {
 public:
  GrowingTree(specdec_draft &draft, int64_t vocabulary);

  // The candidates below the beam, by the logits [rows, vocabulary] after it. Ids of the target become of `ids`, where
  // they are others.
  void add(const float *logits, const int64_t *ids);
  // Whether another level is wanted, which continues `tokens` of the beam; they hang off the rows `above`.
  bool go_on();
  // Write the draft.
  void finish();

  int32_t rows() const { return static_cast<int32_t>(beam_.size()); }

  specdec_draft &draft;
  std::vector<int64_t> tokens, above;

 private:
  void raise_bar(std::size_t first);

  const int64_t vocabulary_;
  const int width_;
  const int32_t levels_;
  double bar_;  // nothing that is scored lower can be in the tree, or is wanted
  int32_t level_ = 0;
  std::size_t first_ = 0;              // candidate of the last level
  std::vector<float> scores_;          // of all candidates
  std::vector<int64_t> candidates_;    // their tokens
  std::vector<int32_t> origins_;       // the candidate that each continues; -1: the root
  std::vector<float> best_;            // the scores of the `nodes` best
  std::vector<int32_t> beam_;          // candidates that are drafted on; -1: the root
};

}  // namespace SPECDEC_VARIANT
