#include "model.h"

#include <algorithm>

#include "computation.h"

namespace SPECDEC_VARIANT {

namespace {

// Weights times rows per thread: with less work, waking and waiting for another thread costs more than it saves.
constexpr int64_t WORK_OF_A_THREAD = 1 << 21;

const Product *inner(const specdec_product *product) { return reinterpret_cast<const Product *>(product); }

Sizes sizes_of(const specdec_config &config) {
  Sizes sizes{config.layers, config.hidden, config.queries, config.keys, config.width, config.rotary, config.vocabulary, 0, 0};
  for (int32_t i = 0; i < config.layers; i++) {
    const specdec_layer &layer = config.layer[i];
    sizes.inner = std::max(sizes.inner, product_in(inner(layer.mlp[0].down)));
    sizes.rotations = std::max<int64_t>(sizes.rotations, layer.rotation + 1);
  }
  return sizes;
}

std::vector<std::vector<specdec_mlp>> mlps_of(const specdec_config &config) {
  std::vector<std::vector<specdec_mlp>> all;
  for (int32_t i = 0; i < config.layers; i++) {
    const specdec_layer &layer = config.layer[i];
    all.emplace_back(layer.mlp, layer.mlp + (layer.router ? config.experts : 1));
  }
  return all;
}

bool has_shape(const specdec_product *product, int64_t out, int64_t in) {
  return product_out(inner(product)) == out && product_in(inner(product)) == in;
}

int64_t weights_of(const specdec_product *product) { return product_out(inner(product)) * product_in(inner(product)); }

}  // namespace

bool complete(const specdec_config &config) {
  for (int32_t i = 0; i < config.layers; i++) {
    const specdec_layer &layer = config.layer[i];
    const int32_t count = layer.router ? config.experts : 1;
    if (!layer.qkv || !layer.output || !layer.mlp || count < 1) return false;
    for (int32_t mlp = 0; mlp < count; mlp++)
      if (!layer.mlp[mlp].gate_up || !layer.mlp[mlp].down) return false;
  }
  return true;
}

Model::Model(const specdec_config &given)
    : config(given),
      sizes(sizes_of(given)),
      layers(given.layer, given.layer + given.layers),
      mlps(mlps_of(given)),
      shared_pages(std::make_shared<Pages>(PageShape(given.layers, given.keys, given.width))),
      pages(*shared_pages) {
  for (const specdec_layer &layer : layers) {
    const specdec_mlp &mlp = layer.mlp[0];  // the experts of a layer are of one shape
    const int64_t through = layer.router ? config.chosen : 1;
    weights_ += weights_of(layer.qkv) + weights_of(layer.output) + through * (weights_of(mlp.gate_up) + weights_of(mlp.down));
  }
}

int32_t Model::check() const {
  const Sizes &s = sizes;
  bool fits = s.layers > 0 && s.hidden > 0 && s.keys > 0 && s.width > 0 && s.width % 2 == 0;
  fits = fits && s.queries % s.keys == 0 && (!config.unembed || product_in(unembed()) == s.hidden);
  fits = fits && s.rotary % 2 == 0 && s.rotary >= 0 && s.rotary <= s.width;
  for (int64_t index = 0; index < s.layers && fits; index++) {
    const specdec_layer &layer = layers[index];
    fits = has_shape(layer.qkv, s.qkv(), s.hidden) && has_shape(layer.output, s.hidden, s.queries * s.width);
    fits = fits && layer.window >= 0 && layer.rotation >= -1;
    if (layer.router) {
      fits = fits && has_shape(layer.router, config.experts, s.hidden);
      fits = fits && config.chosen > 0 && config.chosen <= config.experts;
    }
    if (!fits) break;
    const int64_t width = product_in(inner(mlps[index][0].down));
    for (const specdec_mlp &mlp : mlps[index])
      fits = fits && has_shape(mlp.gate_up, 2 * width, s.hidden) && has_shape(mlp.down, s.hidden, width);
  }
  return fits ? SPECDEC_OK : SPECDEC_BAD_SHAPE;
}

int32_t Model::reserve(int64_t rows, int64_t threads) {
  const Sizes &s = sizes;
  int64_t scratch = config.unembed ? product_scratch(unembed(), rows) : 0;
  bool routed = false;
  for (int64_t index = 0; index < s.layers; index++) {
    const specdec_layer &layer = layers[index];
    const specdec_mlp &mlp = mlps[index][0];
    for (const specdec_product *product : {layer.qkv, layer.output, mlp.gate_up, mlp.down, layer.router})
      if (product) scratch = std::max(scratch, product_scratch(inner(product), rows));
    routed = routed || layer.router;
  }
  Workspace &w = workspace;
  const bool there = w.x.reserve(rows * s.hidden) && w.normed.reserve(rows * s.hidden) && w.qkv.reserve(rows * s.qkv()) &&
                     w.attended.reserve(rows * s.queries * s.width) && w.gate_up.reserve(rows * std::max(2 * s.inner, s.hidden)) &&
                     w.product.reserve(scratch) && w.added.reserve(rows * s.hidden) &&
                     w.routes.reserve(routed ? rows * config.experts : 0) && w.through.reserve(routed ? rows * s.hidden : 0);
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
