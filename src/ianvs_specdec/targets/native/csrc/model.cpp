#include "model.h"

#include <algorithm>

#include "computation.h"

namespace SPECDEC_VARIANT {

namespace {

// Numbers of weights times rows from which one more thread saves more time than it costs to wake it and wait for it.
constexpr int64_t WORK_OF_A_THREAD = 1 << 21;

Sizes sizes_of(const specdec_config &config) {
  return {config.layers, config.hidden,       config.queries,   config.keys,
          config.width,  config.intermediate, config.vocabulary};
}

bool has_shape(const specdec_product *product, int64_t out, int64_t in) {
  const auto *inner = reinterpret_cast<const Product *>(product);
  return inner && product_out(inner) == out && product_in(inner) == in;
}

const Product *products_of(const specdec_layer &layer, int which) {
  const specdec_product *const all[] = {layer.qkv, layer.output, layer.gate_up, layer.down};
  return reinterpret_cast<const Product *>(all[which]);
}

constexpr int PRODUCTS = 4;

}  // namespace

int64_t Workspace::bytes() const {
  int64_t total = x.bytes() + normed.bytes() + qkv.bytes() + attended.bytes() + gate_up.bytes() + product.bytes();
  for (const AttentionScratch &scratch : attention)
    total += static_cast<int64_t>((scratch.scores.capacity() + scratch.sums.capacity()) * sizeof(float));
  return total;
}

Model::Model(const specdec_config &given)
    : config(given),
      sizes(sizes_of(given)),
      layers(given.layer, given.layer + given.layers),
      shared_pages(std::make_shared<Pages>(PageShape(given.layers, given.keys, given.width))),
      pages(*shared_pages) {
  for (const specdec_layer &layer : layers) {
    for (int which = 0; which < PRODUCTS; which++) {
      const Product *product = products_of(layer, which);
      if (product) weights_ += product_out(product) * product_in(product);
    }
  }
}

int32_t Model::check() const {
  const Sizes &s = sizes;
  bool fits = s.layers > 0 && s.hidden > 0 && s.keys > 0 && s.width > 0 && s.width % 2 == 0 && s.intermediate > 0;
  fits = fits && s.queries % s.keys == 0 && (!config.unembed || product_in(unembed()) == s.hidden);
  for (const specdec_layer &layer : layers) {
    fits = fits && has_shape(layer.qkv, s.qkv(), s.hidden) && has_shape(layer.output, s.hidden, s.queries * s.width);
    fits = fits && has_shape(layer.gate_up, 2 * s.intermediate, s.hidden) && layer.mlp_norm;
    fits = fits && has_shape(layer.down, s.hidden, s.intermediate);
  }
  return fits ? SPECDEC_OK : SPECDEC_BAD_SHAPE;
}

int32_t Model::reserve(int64_t rows, int64_t threads) {
  const Sizes &s = sizes;
  int64_t scratch = config.unembed ? product_scratch(unembed(), rows) : 0;
  for (int which = 0; which < PRODUCTS; which++)
    scratch = std::max(scratch, product_scratch(products_of(layers[0], which), rows));
  Workspace &w = workspace;
  const bool there = w.x.reserve(rows * s.hidden) && w.normed.reserve(rows * s.hidden) && w.qkv.reserve(rows * s.qkv()) &&
                     w.attended.reserve(rows * s.queries * s.width) && w.gate_up.reserve(rows * std::max(2 * s.intermediate, s.hidden)) &&
                     w.product.reserve(scratch);
  if (static_cast<int64_t>(w.attention.size()) < threads) w.attention.resize(threads);
  return there ? SPECDEC_OK : SPECDEC_NO_MEMORY;
}

int Model::threads_for(const specdec_step &step, int64_t rows) const {
  const int64_t useful = 1 + weights_ * rows / WORK_OF_A_THREAD;
  return static_cast<int>(std::clamp<int64_t>(step.threads, 1, useful));
}

int32_t Model::step(const specdec_step &step) {
  std::lock_guard<std::mutex> lock(busy_);
  if (const int32_t error = plan_.make(step, sizes)) return error;
  const auto rows = static_cast<int64_t>(plan_.rows.size());
  const int threads = threads_for(step, rows);
  if (const int32_t error = reserve(rows, threads)) return error;
  compute(*this, step, plan_, threads);
  plan_.finish();
  return SPECDEC_OK;
}

}  // namespace SPECDEC_VARIANT
