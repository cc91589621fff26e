// An EAGLE head: one layer over pairs of a token and a hidden state. It drafts for many sequences at once.
#pragma once

#include <vector>

#include "model.h"
#include "specdec_heads.h"

namespace SPECDEC_VARIANT {

// A sequence in a head: keys and values, and the last computed rows, of the last pair or of a level.
struct HeadSequence {
  explicit HeadSequence(Pages &pages) : keys(pages) {}

  Sequence keys;
  std::vector<float> last;       // [hidden]: after the last pair
  std::vector<float> hidden;     // [rows, hidden]
  std::vector<int32_t> drafted;  // [rows]: their indices among the drafted rows; -1: the last pair
  int32_t count = 0;             // of drafted rows
};

class Head {
 public:
  explicit Head(const specdec_head_config &config);

  int32_t check() const;
  Pages &pages() { return model_.pages; }
  int32_t read(const specdec_head_step &step, const specdec_pairs *pairs, int32_t parts, float *logits);
  int32_t levels(const specdec_head_step &step, const specdec_level *levels, int32_t parts, float *logits);
  int32_t chains(const specdec_head_step &step, specdec_draft *drafts, int32_t parts);
  int32_t trees(const specdec_head_step &step, specdec_draft *drafts, int32_t parts);

  std::mutex busy;  // held by the caller of these

 private:
  // One sequence's rows in a step of the model.
  struct Rows {
    HeadSequence *sequence;
    const int64_t *tokens;
    const int64_t *above;  // as in specdec_level; unused for pairs
    int32_t rows;
    bool stay;
  };

  int32_t read_drafts(const specdec_head_step &step, const specdec_draft *drafts, int32_t parts);
  int32_t draft_level(const specdec_head_step &step);
  int32_t collect(const specdec_head_step &step, const specdec_pairs &pairs, float *to);
  int32_t look_again(const specdec_head_step &step, HeadSequence &sequence, float *logits);
  int32_t enter(const specdec_head_step &step, int64_t rows);
  int32_t compute(const specdec_head_step &step, float *logits);
  void computed();
  int64_t target_id(int64_t token) const { return config_.target_ids ? config_.target_ids[token] : token; }

  const specdec_head_config config_;
  Model &model_;
  const int64_t hidden_, vocabulary_;
  std::vector<Rows> rows_;          // of the step
  std::vector<int32_t> parents_;    // of its rows
  std::vector<specdec_part> parts_;
  std::vector<specdec_level> level_;
  Buffer<float> before_;    // [rows, hidden]: the hidden states before the rows
  Buffer<float> entered_;   // [rows, vector of a token]
  Buffer<float> embedded_;  // [rows, token_width]
  Buffer<float> features_;  // [rows, features * feature]
  Buffer<float> after_;     // [rows, hidden]: output of the rows
  Buffer<float> logits_;    // [rows, draft_vocabulary]: of a draft
};

}  // namespace SPECDEC_VARIANT
