#include "growing_tree.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "likeliest.h"

namespace SPECDEC_VARIANT {

namespace {

// The best `count` candidates from `first` on, best first; ties in order, so that no child precedes its parent.
std::vector<int32_t> best_of(const std::vector<float> &scores, std::size_t first, std::size_t count) {
  std::vector<int32_t> order(scores.size() - first);
  std::iota(order.begin(), order.end(), static_cast<int32_t>(first));
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
  });
  order.resize(count);
  return order;
}

}  // namespace

GrowingTree::GrowingTree(specdec_draft &given, int64_t vocabulary)
    : draft(given),
      vocabulary_(vocabulary),
      width_(static_cast<int>(std::min<int64_t>({given.width, given.nodes, vocabulary}))),
      levels_(std::min(given.levels, given.nodes)),
      bar_(given.least),
      beam_(1, -1) {}

void GrowingTree::add(const float *logits, const int64_t *ids) {
  std::vector<float> values(width_);
  std::vector<int64_t> places(width_);
  first_ = scores_.size();
  level_++;
  for (const int32_t node : beam_) {
    likeliest(logits, vocabulary_, width_, values.data(), places.data());
    const float score = node < 0 ? 0.0f : scores_[node];
    for (int i = 0; i < width_; i++) {
      scores_.push_back(values[i] + score);
      candidates_.push_back(ids ? ids[places[i]] : places[i]);
      origins_.push_back(node);
    }
    logits += vocabulary_;
  }
  raise_bar(first_);
}

void GrowingTree::raise_bar(std::size_t first) {
  const auto nodes = static_cast<std::size_t>(draft.nodes);
  best_.insert(best_.end(), scores_.begin() + first, scores_.end());
  if (best_.size() < nodes) return;
  std::nth_element(best_.begin(), best_.begin() + (nodes - 1), best_.end(), std::greater<float>());
  best_.resize(nodes);
  bar_ = std::max(bar_, static_cast<double>(best_.back()));
}

bool GrowingTree::go_on() {
  if (level_ == levels_) return false;
  std::vector<int32_t> beam = best_of(scores_, first_, width_);
  std::size_t rows = 0;
  while (rows < beam.size() && static_cast<double>(scores_[beam[rows]]) > bar_) rows++;
  beam.resize(rows);
  tokens.clear(), above.clear();
  for (const int32_t node : beam) {
    tokens.push_back(candidates_[node]);
    above.push_back((node - static_cast<int32_t>(first_)) / width_);
  }
  beam_.swap(beam);
  return rows > 0;
}

void GrowingTree::finish() {
  std::vector<int32_t> chosen = best_of(scores_, 0, draft.nodes);
  const auto unlikely = [&](int32_t node) { return static_cast<double>(scores_[node]) < draft.least; };
  chosen.erase(std::remove_if(chosen.begin(), chosen.end(), unlikely), chosen.end());
  std::sort(chosen.begin(), chosen.end());
  std::vector<int32_t> node_of(scores_.size());
  draft.drafted = 0;
  for (const int32_t candidate : chosen) {
    const int32_t origin = origins_[candidate];
    draft.tokens[draft.drafted] = candidates_[candidate];
    draft.parents[draft.drafted] = origin < 0 ? 0 : node_of[origin];
    node_of[candidate] = ++draft.drafted;
  }
}

}  // namespace SPECDEC_VARIANT
