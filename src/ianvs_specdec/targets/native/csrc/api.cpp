// The C interface over the classes.
#include <new>

#include "guarded.h"
#include "model.h"
#include "pool.h"
#include "products.h"
#include "specdec.h"

using namespace SPECDEC_VARIANT;

namespace {

#define SPECDEC_TEXT_(x) #x
#define SPECDEC_TEXT(x) SPECDEC_TEXT_(x)

// Weights times rows from which a product uses several threads: see Model::threads_for.
constexpr int64_t SHARED_PRODUCT = 1 << 21;

Product *inner(specdec_product *product) { return reinterpret_cast<Product *>(product); }
const Product *inner(const specdec_product *product) { return reinterpret_cast<const Product *>(product); }
Model *inner(specdec_model *model) { return reinterpret_cast<Model *>(model); }
const Model *inner(const specdec_model *model) { return reinterpret_cast<const Model *>(model); }
Sequence *inner(specdec_sequence *sequence) { return reinterpret_cast<Sequence *>(sequence); }

// A product outside a model's step.
struct ProductCall {
  const Product *product;
  const float *x;
  int64_t ldx, rows;
  float *y;
  int64_t ldy;
  bool add;
  char *scratch;
  int threads;
  Barrier *barrier;

  static void run(void *call, int thread) {
    const auto &c = *static_cast<ProductCall *>(call);
    product_prepare(c.product, c.x, c.ldx, c.rows, c.scratch, thread, c.threads);
    if (c.threads > 1) c.barrier->wait();
    product_run(c.product, c.scratch, c.rows, c.y, c.ldy, c.add, thread, c.threads);
  }
};

int32_t run_product(ProductCall call, int32_t threads) {
  static thread_local Buffer<char> scratch;
  if (!scratch.reserve(product_scratch(call.product, call.rows))) return SPECDEC_NO_MEMORY;
  const int64_t work = product_out(call.product) * product_in(call.product) * call.rows;
  Barrier barrier(threads);
  call.scratch = scratch(), call.threads = threads, call.barrier = &barrier;
  if (threads > 1 && work >= SHARED_PRODUCT && run_together(threads, ProductCall::run, &call)) return SPECDEC_OK;
  call.threads = 1;
  ProductCall::run(&call, 0);
  return SPECDEC_OK;
}

}  // namespace

extern "C" {

int32_t specdec_version(void) { return SPECDEC_VERSION; }
const char *specdec_sources(void) { return SPECDEC_TEXT(SPECDEC_SOURCES); }
const char *specdec_variant(void) { return SPECDEC_TEXT(SPECDEC_VARIANT); }

specdec_product *specdec_product_new(int32_t kind, int32_t source, const void *weight, int64_t out, int64_t in,
                                     const float *bias) {
  Product *made = nullptr;
  guarded([&] {
    made = product_new(static_cast<Kind>(kind), static_cast<Kind>(source), weight, out, in, bias);
    return SPECDEC_OK;
  });
  return reinterpret_cast<specdec_product *>(made);
}

void specdec_product_free(specdec_product *product) { product_free(inner(product)); }
int64_t specdec_product_bytes(const specdec_product *product) { return product_bytes(inner(product)); }

int32_t specdec_product_run(const specdec_product *product, const float *x, int64_t ldx, int64_t rows, float *y,
                            int64_t ldy, int32_t add, int32_t threads) {
  return guarded([&] {
    return run_product({inner(product), x, ldx, rows, y, ldy, add != 0, nullptr, 1, nullptr}, threads);
  });
}

specdec_model *specdec_model_new(const specdec_config *config, int32_t *error) {
  Model *made = nullptr;
  *error = config->version != SPECDEC_VERSION ? SPECDEC_BAD_VERSION : guarded([&] {
    if (!complete(*config)) return static_cast<int32_t>(SPECDEC_BAD_SHAPE);
    made = new Model(*config);
    return made->check();
  });
  if (*error == SPECDEC_OK) return reinterpret_cast<specdec_model *>(made);
  delete made;
  return nullptr;
}

void specdec_model_free(specdec_model *model) { delete inner(model); }

int64_t specdec_page_bytes(const specdec_model *model) {
  return inner(model)->pages.shape.floats() * static_cast<int64_t>(sizeof(float));
}

int32_t specdec_page_positions(void) { return PAGE; }
int64_t specdec_model_memory(const specdec_model *model) { return inner(model)->pages.bytes(); }

specdec_sequence *specdec_sequence_new(specdec_model *model) {
  return reinterpret_cast<specdec_sequence *>(new (std::nothrow) Sequence(inner(model)->pages));
}

void specdec_sequence_free(specdec_sequence *sequence) { delete inner(sequence); }

int64_t specdec_sequence_length(const specdec_sequence *sequence) {
  return reinterpret_cast<const Sequence *>(sequence)->length;
}

int32_t specdec_sequence_commit(specdec_sequence *sequence, const int32_t *path, int32_t nodes) {
  return inner(sequence)->commit(path, nodes) ? SPECDEC_OK : SPECDEC_BAD_TREE;
}

int32_t specdec_sequence_restore(specdec_sequence *sequence, int64_t length) {
  if (length < 0 || length > inner(sequence)->length) return SPECDEC_BAD_POSITION;
  inner(sequence)->restore(length);
  return SPECDEC_OK;
}

int32_t specdec_model_step(specdec_model *model, const specdec_step *step) {
  if (step->version != SPECDEC_VERSION) return SPECDEC_BAD_VERSION;
  return guarded([&] { return inner(model)->step(*step); });
}

}  // extern "C"
