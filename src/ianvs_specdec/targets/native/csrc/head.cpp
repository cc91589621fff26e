#include "head.h"

#include <algorithm>
#include <cstring>

#include "rows.h"

namespace SPECDEC_VARIANT {

namespace {

bool fits_shape(const specdec_product *product, int64_t out, int64_t in) {
  const auto *inner = reinterpret_cast<const Product *>(product);
  return product_out(inner) == out && product_in(inner) == in;
}

HeadSequence &sequence_of(specdec_head_sequence *sequence) { return *reinterpret_cast<HeadSequence *>(sequence); }

}  // namespace

Head::Head(const specdec_head_config &config)
    : config_(config),
      model_(*reinterpret_cast<Model *>(config.model)),
      hidden_(model_.sizes.hidden),
      vocabulary_(config.draft_vocabulary) {}

int32_t Head::check() const {
  const specdec_head_config &c = config_;
  const int64_t vector = c.entry ? hidden_ : model_.sizes.qkv();
  bool fits = model_.sizes.layers == 1 && c.features > 0 && model_.unembed() && vocabulary_ > 0;
  fits = fits && product_out(model_.unembed()) == vocabulary_ && (!c.entry || fits_shape(c.entry, hidden_, hidden_));
  fits = fits && (c.join ? fits_shape(c.join, hidden_, c.features * c.feature) : c.features == 1 && c.feature == hidden_);
  const int64_t width = c.features * c.feature, together = c.feature_norm ? c.feature_norm_width : width;
  fits = fits && together > 0 && width % together == 0;
  fits = fits && (c.token_product ? fits_shape(c.token_product, vector, c.token_width) : c.token_width == vector);
  return fits ? SPECDEC_OK : SPECDEC_BAD_SHAPE;
}

// The hidden states of new pairs, from their features.
int32_t Head::collect(const specdec_head_step &step, const specdec_pairs &pairs, float *to) {
  const int64_t width = config_.features * config_.feature;
  float *joined = to;
  if (config_.join) {
    if (!features_.reserve(pairs.pairs * width)) return SPECDEC_NO_MEMORY;
    joined = features_();
  }
  for (int32_t pair = 0; pair < pairs.pairs; pair++) {
    const int64_t row = pairs.rows ? pairs.rows[pair] : pair;
    for (int32_t i = 0; i < config_.features; i++)
      std::memcpy(joined + pair * width + i * config_.feature, pairs.features[i] + row * config_.feature,
                  config_.feature * sizeof(float));
    const int64_t together = config_.feature_norm ? config_.feature_norm_width : width;
    for (int64_t i = 0; config_.feature_norm && i < width; i += together) {
      float *part = joined + pair * width + i;
      norm(part, config_.feature_norm + i, model_.config.epsilon, together, part);
    }
  }
  if (!config_.join) return SPECDEC_OK;
  return specdec_product_run(config_.join, joined, width, pairs.pairs, to, hidden_, 0, step.threads);
}

// The layer's input, from the tokens and the hidden states before them.
int32_t Head::enter(const specdec_head_step &step, int64_t rows) {
  const specdec_head_config &c = config_;
  const int64_t vector = c.entry ? hidden_ : model_.sizes.qkv();
  if (!entered_.reserve(rows * vector) || !embedded_.reserve(c.token_product ? rows * c.token_width : 0))
    return SPECDEC_NO_MEMORY;
  float *to = c.token_product ? embedded_() : entered_();
  for (const Rows &part : rows_) {
    for (int32_t i = 0; i < part.rows; i++, to += c.token_width) {
      if (part.tokens[i] < 0 || part.tokens[i] >= c.vocabulary) return SPECDEC_BAD_TOKEN;
      look_up(c.token, c.token_kind, part.tokens[i], c.token_width, to);
      if (c.token_norm) norm(to, c.token_norm, model_.config.epsilon, c.token_width, to);
    }
  }
  int32_t error = SPECDEC_OK;
  if (c.token_product)
    error = specdec_product_run(c.token_product, embedded_(), c.token_width, rows, entered_(), vector, 0, step.threads);
  if (c.entry && !error)
    error = specdec_product_run(c.entry, before_(), hidden_, rows, entered_(), hidden_, 1, step.threads);
  return error;
}

// One step of the layer for `rows_`, whose hidden states before them are in `before_`. Logits of the rows of levels and
// of the last pairs.
int32_t Head::compute(const specdec_head_step &step, float *logits) {
  int64_t rows = 0;
  parts_.clear(), parents_.clear();
  for (const Rows &part : rows_) {
    rows += part.rows;
    for (int32_t i = 0; i < part.rows; i++)
      parents_.push_back(part.stay ? -1 : part.sequence->drafted[part.above ? part.above[i] : 0]);
  }
  if (!after_.reserve(rows * hidden_)) return SPECDEC_NO_MEMORY;
  for (float *x = before_(); config_.before_norm && x < before_() + rows * hidden_; x += hidden_)
    norm(x, config_.before_norm, model_.config.epsilon, hidden_, x);
  if (const int32_t error = enter(step, rows)) return error;
  const int32_t *parents = parents_.data();
  for (const Rows &part : rows_) {
    specdec_part &given = parts_.emplace_back();
    given = {};
    given.sequence = reinterpret_cast<specdec_sequence *>(&part.sequence->keys);
    given.rows = part.rows, given.stay = part.stay, given.grow = !part.stay && part.sequence->count > 0;
    given.parents = part.stay ? nullptr : parents;
    given.logits = part.stay ? SPECDEC_LAST : SPECDEC_ALL;
    parents += part.rows;
  }
  const int32_t fed_back = static_cast<int32_t>(model_.sizes.layers) + (config_.normed ? 0 : 1);
  float *const after = after_();
  specdec_step given{};
  given.version = SPECDEC_VERSION, given.threads = step.threads;
  given.parts = static_cast<int32_t>(parts_.size()), given.part = parts_.data();
  given.input = config_.entry ? entered_() : before_();
  given.qkv_addition = config_.entry ? nullptr : entered_();
  given.cosine = step.cosine, given.sine = step.sine, given.positions = step.positions, given.rotations = 1;
  given.logits = logits;
  given.features = 1, given.feature = &fed_back, given.hidden = &after;
  const int32_t error = model_.step(given);
  if (!error) computed();
  return error;
}

// Store each sequence's output rows.
void Head::computed() {
  const float *after = after_();
  for (const Rows &part : rows_) {
    HeadSequence &sequence = *part.sequence;
    const float *end = after + part.rows * hidden_;
    if (part.stay) {
      sequence.last.assign(end - hidden_, end);
      sequence.hidden = sequence.last;
      sequence.drafted.assign(1, -1);
      sequence.count = 0;
    } else {
      sequence.hidden.assign(after, end);
      sequence.drafted.resize(part.rows);
      for (int32_t i = 0; i < part.rows; i++) sequence.drafted[i] = sequence.count++;
    }
    after = end;
  }
}

// Recompute the logits after the last pair; drafted rows are dropped.
int32_t Head::look_again(const specdec_head_step &step, HeadSequence &sequence, float *logits) {
  if (sequence.last.empty()) return SPECDEC_BAD_TREE;
  sequence.hidden = sequence.last;
  sequence.drafted.assign(1, -1);
  sequence.count = 0;
  if (!after_.reserve(hidden_)) return SPECDEC_NO_MEMORY;
  const float *end = sequence.last.data();
  if (const float *weight = config_.normed ? nullptr : model_.config.final_norm) {
    norm(end, weight, model_.config.epsilon, hidden_, after_());
    end = after_();
  }
  const int32_t error =
      specdec_product_run(model_.config.unembed, end, hidden_, 1, logits, vocabulary_, 0, step.threads);
  scale(logits, model_.config.logits_scale, vocabulary_);
  cap(logits, model_.config.logits_cap, vocabulary_);
  return error;
}

int32_t Head::read(const specdec_head_step &step, const specdec_pairs *pairs, int32_t parts, float *logits) {
  int64_t rows = 0, fresh = 0;
  for (int32_t i = 0; i < parts; i++) rows += pairs[i].pairs, fresh += pairs[i].pairs > 0;
  if (!before_.reserve(rows * hidden_) || !logits_.reserve(parts * vocabulary_)) return SPECDEC_NO_MEMORY;
  rows_.clear();
  float *to = before_();
  for (int32_t i = 0; i < parts; i++) {
    if (pairs[i].pairs == 0) continue;
    if (const int32_t error = collect(step, pairs[i], to)) return error;
    rows_.push_back({&sequence_of(pairs[i].sequence), pairs[i].tokens, nullptr, pairs[i].pairs, true});
    to += pairs[i].pairs * hidden_;
  }
  if (!logits) logits = logits_();
  if (fresh) {
    if (const int32_t error = compute(step, logits)) return error;
  }
  if (fresh == parts) return SPECDEC_OK;
  // The new logits are contiguous: spread them, from the last on.
  for (int32_t i = parts; i-- > 0;) {
    float *own = logits + i * vocabulary_;
    if (pairs[i].pairs > 0) {
      std::memmove(own, logits + --fresh * vocabulary_, vocabulary_ * sizeof(float));
    }
  }
  for (int32_t i = 0; i < parts; i++) {
    if (pairs[i].pairs > 0) continue;
    if (const int32_t error = look_again(step, sequence_of(pairs[i].sequence), logits + i * vocabulary_)) return error;
  }
  return SPECDEC_OK;
}

int32_t Head::levels(const specdec_head_step &step, const specdec_level *levels, int32_t parts, float *logits) {
  int64_t rows = 0;
  rows_.clear();
  for (int32_t i = 0; i < parts; i++) {
    const specdec_level &level = levels[i];
    const auto before = static_cast<int64_t>(sequence_of(level.sequence).drafted.size());
    for (int32_t row = 0; row < level.rows; row++) {
      const int64_t above = level.above ? level.above[row] : 0;
      if (above < 0 || above >= before) return SPECDEC_BAD_TREE;
    }
    rows_.push_back({&sequence_of(level.sequence), level.tokens, level.above, level.rows, false});
    rows += level.rows;
  }
  if (!before_.reserve(rows * hidden_)) return SPECDEC_NO_MEMORY;
  float *to = before_();
  for (const Rows &part : rows_) {
    for (int32_t i = 0; i < part.rows; i++, to += hidden_) {
      const int64_t above = part.above ? part.above[i] : 0;
      std::memcpy(to, part.sequence->hidden.data() + above * hidden_, hidden_ * sizeof(float));
    }
  }
  return compute(step, logits);
}

}  // namespace SPECDEC_VARIANT
