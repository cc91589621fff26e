// What a test calls of one variant of the products.
#include "products.cpp"

using namespace SPECDEC_VARIANT;

extern "C" {
void* make(int kind, int source, const void* weight, int64_t out, int64_t in, const float* bias) {
    return product_new((Kind)kind, (Kind)source, weight, out, in, bias);
}
void drop(void* product) { product_free((Product*)product); }
int64_t held(void* product) { return product_bytes((Product*)product); }
int64_t scratch(void* product, int64_t rows) { return product_scratch((Product*)product, rows); }
void prepare(void* product, const float* x, int64_t ldx, int64_t rows, void* buffer, int thread, int threads) {
    product_prepare((Product*)product, x, ldx, rows, buffer, thread, threads);
}
void run(void* product, const void* buffer, int64_t rows, float* y, int64_t ldy, int add, int thread, int threads) {
    product_run((Product*)product, buffer, rows, y, ldy, add != 0, thread, threads);
}
}
