#include "plan.h"

#include <algorithm>

namespace SPECDEC_VARIANT {

namespace {

// Divide the attention of the chosen rows from `begin` on, all of one sequence, into units of similar size.
void share_out(Chosen &chosen, int64_t begin, const Sizes &sizes) {
  const int64_t queries = (static_cast<int64_t>(chosen.rows.size()) - begin) * sizes.group();
  const int64_t parts = (queries + QUERIES - 1) / QUERIES;
  for (int64_t head = 0; head < sizes.keys; head++) {
    for (int64_t part = 0; part < parts; part++) {
      const int64_t first = queries * part / parts, end = queries * (part + 1) / parts;
      chosen.units.push_back({begin, first, end - first, head});
    }
  }
}

}  // namespace

int32_t Plan::make(const specdec_step &step, const Sizes &sizes) {
  rows.clear(), paths.clear(), with_logits.clear(), after_.clear();
  for (Chosen *chosen : {&all, &ends}) chosen->rows.clear(), chosen->units.clear();
  int32_t error = SPECDEC_OK;
  for (int32_t i = 0; i < step.parts && !error; i++) error = add(step.part[i], sizes);
  for (std::size_t i = 0; i < rows.size() && !error; i++) {
    const bool turned = rows[i].rotation >= 0 && rows[i].rotation + sizes.rotations <= step.rotations;
    if (rows[i].position >= step.positions || !turned) error = SPECDEC_BAD_POSITION;
    const bool known = !step.tokens || (step.tokens[i] >= 0 && step.tokens[i] < sizes.vocabulary);
    if (!known) error = SPECDEC_BAD_TOKEN;
  }
  return error;
}

int32_t Plan::add(const specdec_part &part, const Sizes &sizes) {
  auto &sequence = *reinterpret_cast<Sequence *>(part.sequence);
  const auto begin = static_cast<int64_t>(rows.size());
  if (part.rows < 1 || (part.stay && (part.parents || part.grow))) return SPECDEC_BAD_TREE;
  after_.push_back({&sequence, sequence.length + (part.stay ? part.rows : 0), {}, {}});
  if (part.stay) {
    for (int64_t i = 0; i < part.rows; i++) {
      const int64_t at = sequence.length + i;
      rows.push_back({&sequence, at, at, at + 1, 0, 0, part.rotation});
    }
  } else if (const int32_t error = add_tree(part, after_.back())) {
    return error;
  }
  if (!sequence.reserve(rows.back().slot + 1)) return SPECDEC_NO_MEMORY;
  choose(part, begin, sizes);
  return SPECDEC_OK;
}

int32_t Plan::add_tree(const specdec_part &part, After &after) {
  auto &[sequence, length, parents, depths] = after;
  if (part.grow) parents = sequence->parents, depths = sequence->depths;
  const auto earlier = static_cast<int32_t>(parents.size());
  for (int32_t row = earlier; row < earlier + part.rows; row++) {
    const int32_t parent = part.parents ? part.parents[row - earlier] : row - 1;
    if (parent < -1 || parent >= row) return SPECDEC_BAD_TREE;
    const int32_t depth = parent < 0 ? 0 : depths[parent] + 1;
    parents.push_back(parent);
    depths.push_back(depth);
    const int64_t slot = length + row;
    if (depth == row) {  // all rows before it are its ancestors
      rows.push_back({sequence, slot, slot, slot + 1, 0, 0, part.rotation});
      continue;
    }
    const auto begin = static_cast<int64_t>(paths.size());
    paths.resize(begin + depth + 1);
    for (int32_t at = row, i = depth; i >= 0; at = parents[at], i--) paths[begin + i] = at;
    rows.push_back({sequence, length + depth, slot, length, begin, depth + 1, part.rotation});
  }
  return SPECDEC_OK;
}

void Plan::choose(const specdec_part &part, int64_t begin, const Sizes &sizes) {
  const auto first = static_cast<int64_t>(all.rows.size()), first_end = static_cast<int64_t>(ends.rows.size());
  const int64_t last = begin + part.rows - 1;
  for (int64_t row = begin; row <= last; row++) {
    const bool logits = part.logits == SPECDEC_ALL || (part.logits == SPECDEC_LAST && row == last);
    all.rows.push_back(row);
    if (logits) with_logits.push_back(static_cast<int64_t>(ends.rows.size()));
    if (logits || part.ends) ends.rows.push_back(row);
  }
  share_out(all, first, sizes);
  share_out(ends, first_end, sizes);
}

void Plan::finish() {
  for (After &after : after_) {
    after.sequence->restore(after.length);
    after.sequence->parents.swap(after.parents);
    after.sequence->depths.swap(after.depths);
  }
}

}  // namespace SPECDEC_VARIANT
