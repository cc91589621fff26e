// The C interface of draft heads over the classes.
#include <cstring>
#include <new>

#include "guarded.h"
#include "head.h"
#include "likeliest.h"
#include "rows.h"
#include "specdec_heads.h"

using namespace SPECDEC_VARIANT;

namespace {

Head &head_of(specdec_head *head) { return *reinterpret_cast<Head *>(head); }

// guarded() for a head. Calls for the same head are serialized.
template <class Work>
int32_t with(specdec_head *head, Work work) {
  std::lock_guard<std::mutex> lock(head_of(head).busy);
  return guarded([&] { return work(head_of(head)); });
}

// Apply the blocks and the output of head `head` to x [rows, hidden]; writes its rows of `logits`.
int32_t guess(const specdec_medusa &medusa, int32_t head, float *x, float *block, int64_t rows, float *logits,
              int32_t threads) {
  const int64_t hidden = medusa.hidden;
  for (int32_t layer = 0; layer < medusa.layers; layer++) {
    const specdec_product *product = medusa.blocks[head * medusa.layers + layer];
    if (const int32_t error = specdec_product_run(product, x, hidden, rows, block, hidden, 0, threads)) return error;
    add_active(block, rows * hidden, x);
  }
  return specdec_product_run(medusa.outputs[head], x, hidden, rows, logits + head * medusa.vocabulary,
                             medusa.heads * medusa.vocabulary, 0, threads);
}

}  // namespace

extern "C" {

specdec_head *specdec_head_new(const specdec_head_config *config, int32_t *error) {
  Head *made = nullptr;
  *error = config->version != SPECDEC_VERSION ? SPECDEC_BAD_VERSION : guarded([&] {
    made = new Head(*config);
    return made->check();
  });
  if (*error == SPECDEC_OK) return reinterpret_cast<specdec_head *>(made);
  delete made;
  return nullptr;
}

void specdec_head_free(specdec_head *head) { delete &head_of(head); }

specdec_head_sequence *specdec_head_sequence_new(specdec_head *head) {
  return reinterpret_cast<specdec_head_sequence *>(new (std::nothrow) HeadSequence(head_of(head).pages()));
}

void specdec_head_sequence_free(specdec_head_sequence *sequence) { delete reinterpret_cast<HeadSequence *>(sequence); }

int32_t specdec_head_read(specdec_head *head, const specdec_head_step *step, const specdec_pairs *pairs, int32_t parts,
                          float *logits) {
  return with(head, [&](Head &inner) { return inner.read(*step, pairs, parts, logits); });
}

int32_t specdec_head_levels(specdec_head *head, const specdec_head_step *step, const specdec_level *levels,
                            int32_t parts, float *logits) {
  return with(head, [&](Head &inner) { return inner.levels(*step, levels, parts, logits); });
}

int32_t specdec_head_chains(specdec_head *head, const specdec_head_step *step, specdec_draft *drafts, int32_t parts) {
  return with(head, [&](Head &inner) { return inner.chains(*step, drafts, parts); });
}

int32_t specdec_head_trees(specdec_head *head, const specdec_head_step *step, specdec_draft *drafts, int32_t parts) {
  return with(head, [&](Head &inner) { return inner.trees(*step, drafts, parts); });
}

int32_t specdec_medusa_run(const specdec_medusa *medusa, const float *hidden, int64_t rows, float *logits,
                           int32_t threads) {
  if (medusa->version != SPECDEC_VERSION) return SPECDEC_BAD_VERSION;
  return guarded([&] {
    const int64_t count = rows * medusa->hidden;
    std::vector<float> x(count), block(count);
    int32_t error = SPECDEC_OK;
    for (int32_t head = 0; head < medusa->heads && !error; head++) {
      std::memcpy(x.data(), hidden, count * sizeof(float));
      error = guess(*medusa, head, x.data(), block.data(), rows, logits, threads);
    }
    return error;
  });
}

int32_t specdec_likeliest(const float *logits, int64_t rows, int64_t vocabulary, int32_t width, float *values,
                          int64_t *places) {
  if (width < 1 || width > vocabulary) return SPECDEC_BAD_SHAPE;
  for (int64_t row = 0; row < rows; row++)
    likeliest(logits + row * vocabulary, vocabulary, width, values + row * width, places + row * width);
  return SPECDEC_OK;
}

}  // extern "C"
