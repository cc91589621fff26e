// Products of float32 rows with a fixed weight, which is packed once.
//
// Compiled once per instruction set, each time inside another `namespace SPECDEC_VARIANT`. A row's result has the same
// bits with any other rows and any number of threads: each output element has a fixed order of operations.
#pragma once

#include <cstdint>

namespace SPECDEC_VARIANT {

// Type of a packed weight, and of its source (the first three only).
enum class Kind : int { f32 = 0, bf16 = 1, f16 = 2, int8 = 3, int4 = 4 };

struct Product;  // a packed weight [out, in] and its bias [out]

// `weight`, row-major [out, in] of type `source`, and `bias`, [out] or null, are copied. nullptr: out of memory.
Product* product_new(Kind kind, Kind source, const void* weight, int64_t out, int64_t in, const float* bias);
void product_free(Product* product);
int64_t product_bytes(const Product* product);
int64_t product_out(const Product* product);
int64_t product_in(const Product* product);

// Bytes of the buffer, aligned to 64, for `rows` activations in the product's format.
int64_t product_scratch(const Product* product, int64_t rows);
// Converts this thread's share of x [rows, in], with row stride `ldx`, to that format. All threads must finish before
// one runs the product.
void product_prepare(const Product* product, const float* x, int64_t ldx, int64_t rows, void* scratch, int thread,
                     int threads);
// y [rows, out] with row stride `ldy`: y (+)= x W^T + b, this thread's share of the output columns.
void product_run(const Product* product, const void* scratch, int64_t rows, float* y, int64_t ldy, bool add, int thread,
                 int threads);

}  // namespace SPECDEC_VARIANT
