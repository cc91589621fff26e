// Drafts by probability alone: chains and dynamic trees.
#include "growing_tree.h"
#include "head.h"
#include "likeliest.h"

namespace SPECDEC_VARIANT {

// The logits after every draft's last pair, in `logits_`.
int32_t Head::read_drafts(const specdec_head_step &step, const specdec_draft *drafts, int32_t parts) {
  std::vector<specdec_pairs> pairs;
  for (int32_t i = 0; i < parts; i++) pairs.push_back(drafts[i].pairs);
  return read(step, pairs.data(), parts, nullptr);
}

// The logits of the level that `level_` describes, in `logits_`.
int32_t Head::draft_level(const specdec_head_step &step) {
  int64_t rows = 0;
  for (const specdec_level &level : level_) rows += level.rows;
  if (!logits_.reserve(rows * vocabulary_)) return SPECDEC_NO_MEMORY;
  return levels(step, level_.data(), static_cast<int32_t>(level_.size()), logits_());
}

int32_t Head::chains(const specdec_head_step &step, specdec_draft *drafts, int32_t parts) {
  std::vector<specdec_draft *> growing;
  std::vector<double> likelihoods(parts);
  int32_t error = read_drafts(step, drafts, parts);
  for (int32_t i = 0; i < parts; i++) {
    drafts[i].drafted = 0;
    growing.push_back(&drafts[i]);
  }
  while (!error && !growing.empty()) {
    std::vector<specdec_draft *> further;
    const float *logits = logits_();
    level_.clear();
    for (specdec_draft *draft : growing) {
      float value = 0;
      int64_t place = 0;
      if (draft->least > NOTHING) {
        double &likelihood = likelihoods[draft - drafts];
        likeliest(logits, vocabulary_, 1, &value, &place);
        likelihood += value;
        logits += vocabulary_;
        if (likelihood < draft->least) continue;
      } else {
        greatest(logits, vocabulary_, 1, &value, &place);
        logits += vocabulary_;
      }
      draft->parents[draft->drafted] = draft->drafted;
      int64_t *token = draft->tokens + draft->drafted++;
      *token = target_id(place);
      if (draft->drafted == draft->nodes || draft->drafted == draft->levels) continue;
      level_.push_back({draft->pairs.sequence, token, nullptr, 1});
      further.push_back(draft);
    }
    growing.swap(further);
    if (!growing.empty()) error = draft_level(step);
  }
  return error;
}

int32_t Head::trees(const specdec_head_step &step, specdec_draft *drafts, int32_t parts) {
  std::vector<GrowingTree> trees;
  std::vector<GrowingTree *> growing;
  trees.reserve(parts);
  for (int32_t i = 0; i < parts; i++) growing.push_back(&trees.emplace_back(drafts[i], vocabulary_));
  int32_t error = read_drafts(step, drafts, parts);
  while (!error && !growing.empty()) {
    std::vector<GrowingTree *> further;
    const float *logits = logits_();
    level_.clear();
    for (GrowingTree *tree : growing) {
      const int32_t rows = tree->rows();
      tree->add(logits, config_.target_ids);
      logits += rows * vocabulary_;
      if (!tree->go_on()) continue;
      level_.push_back({tree->draft.pairs.sequence, tree->tokens.data(), tree->above.data(), tree->rows()});
      further.push_back(tree);
    }
    growing.swap(further);
    if (!growing.empty()) error = draft_level(step);
  }
  for (GrowingTree &tree : trees) {
    if (!error) tree.finish();
  }
  return error;
}

}  // namespace SPECDEC_VARIANT
