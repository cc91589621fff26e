/* The C interface of the native step, called from Python through ctypes.
 *
 * Matrices are row-major float32 unless stated otherwise. Pointers belong to the caller and are used only during the
 * call, unless a function states that it keeps them. A function that can fail returns 0 or one of the codes below, or
 * NULL; after a failure nothing has changed.
 *
 * The results of a row have the same bits whatever else the step computes, on any number of threads, and whether tokens
 * arrive as a prompt, one by one, in a chain or in a tree.
 */
#ifndef SPECDEC_H
#define SPECDEC_H

#include <stdint.h>

#pragma GCC visibility push(default) /* everything else is hidden */

#ifdef __cplusplus
extern "C" {
#endif

/* Increased with every change of this file. Structs carry it, so that an outdated layout is refused. */
#define SPECDEC_VERSION 4

enum {
  SPECDEC_OK = 0,
  SPECDEC_BAD_VERSION = -1, /* a struct has another version */
  SPECDEC_NO_MEMORY = -2,
  SPECDEC_BAD_TOKEN = -3,    /* a token is not in the vocabulary */
  SPECDEC_BAD_POSITION = -4, /* a row has no rotation */
  SPECDEC_BAD_TREE = -5,     /* a parent that is not before its row, or a path that is not in the tree */
  SPECDEC_BAD_SHAPE = -6     /* products or sizes that do not fit together */
};

/* Version of the interface, fingerprint of the sources that were compiled, and name of the instruction set. */
int32_t specdec_version(void);
const char *specdec_sources(void);
const char *specdec_variant(void);

/* The variants that this processor can run, best first, separated by spaces. Call it in the library "processor", which
 * is compiled for every processor of the architecture. */
const char *specdec_runnable(void);

/* ---- Products with a fixed weight: y [rows, out] = x [rows, in] W^T + bias ---------------------------------------- */

/* Types of weights. int8 and int4 are rounded from float weights here. */
enum { SPECDEC_F32 = 0, SPECDEC_BF16 = 1, SPECDEC_F16 = 2, SPECDEC_INT8 = 3, SPECDEC_INT4 = 4 };

typedef struct specdec_product specdec_product;

/* Copies `weight` [out, in] of type `source` (f32, bf16 or f16) and `bias` [out] or NULL. NULL: out of memory. */
specdec_product *specdec_product_new(int32_t kind, int32_t source, const void *weight, int64_t out, int64_t in,
                                     const float *bias);
void specdec_product_free(specdec_product *product);
int64_t specdec_product_bytes(const specdec_product *product);

/* `ldx` and `ldy`: strides of the rows, in floats. `add`: y += product. */
int32_t specdec_product_run(const specdec_product *product, const float *x, int64_t ldx, int64_t rows, float *y,
                            int64_t ldy, int32_t add, int32_t threads);

/* ---- Models ------------------------------------------------------------------------------------------------------- */

/* A gated MLP: active(gate) * up. */
typedef struct {
  const specdec_product *gate_up; /* hidden -> 2 * inner: gate, then up */
  const specdec_product *down;    /* inner -> hidden */
} specdec_mlp;

enum { SPECDEC_SILU = 0, SPECDEC_GELU_TANH = 1 };

/* One decoder layer. Products and norms are not copied and must outlive the model. NULL norms are skipped. */
typedef struct {
  const float *input_norm;  /* [hidden]: before the attention */
  const float *query_norm;  /* [width]: per query head; with `whole_norms` over all heads, [queries * width] */
  const float *key_norm;    /* [width] or [keys * width] */
  const float *output_norm; /* [hidden]: after the attention */
  const float *mlp_norm;    /* [hidden]: before the MLP */
  const float *down_norm;   /* [hidden]: after the MLP */
  const specdec_product *qkv;    /* hidden -> (queries + 2 keys) * width: query, key and value heads in this order */
  const specdec_product *output; /* queries * width -> hidden */
  const specdec_product *router; /* hidden -> experts; NULL: the layer has one MLP for all rows */
  const specdec_mlp *mlp;        /* one or [experts] of the same shape, copied */
  int32_t window;                /* positions that a row attends to, its own included; 0: all */
  int32_t rotation;              /* index into the rotations of a step; -1: none */
} specdec_layer;

typedef struct {
  int32_t version;
  int32_t layers, hidden, queries, keys, width; /* `width` of a head, even; `keys` divides `queries` */
  int32_t rotary;      /* dimensions of a head that are rotated, even */
  int32_t gate;        /* SPECDEC_SILU or _GELU_TANH */
  int32_t whole_norms; /* see `query_norm` */
  int32_t experts;     /* of every layer with a router */
  int32_t chosen;      /* experts per row */
  int32_t normalize_chosen; /* their probabilities are divided by their sum */
  float epsilon;       /* of all norms */
  float embedding_scale, residual_scale, logits_scale; /* factors of embeddings, of what a layer adds, and of logits */
  float attention_scale;                               /* factor of queries */
  float attention_cap, logits_cap;                     /* x becomes cap * tanh(x / cap); 0: no cap */
  int32_t embedding_kind;                                     /* f32, bf16 or f16 */
  int64_t vocabulary;                                         /* rows of the embedding */
  const void *embedding;          /* [vocabulary, hidden], not copied; NULL: steps have `input` */
  const float *final_norm;        /* [hidden]; NULL: none */
  const specdec_product *unembed; /* hidden -> logits; NULL: the model computes no logits */
  const specdec_layer *layer;     /* [layers], copied */
} specdec_config;

typedef struct specdec_model specdec_model;

specdec_model *specdec_model_new(const specdec_config *config, int32_t *error);
/* Afterwards its sequences can only be freed. */
void specdec_model_free(specdec_model *model);
/* Bytes and positions of a page of keys and values; a sequence has whole pages. */
int64_t specdec_page_bytes(const specdec_model *model);
int32_t specdec_page_positions(void);
/* Bytes of all pages, including those of freed sequences, which are reused. */
int64_t specdec_model_memory(const specdec_model *model);

/* ---- Sequences ---------------------------------------------------------------------------------------------------- */

/* Keys and values of `length` committed positions, then those of the current tree's rows (drafted rows), in the order
 * of computation. */
typedef struct specdec_sequence specdec_sequence;

specdec_sequence *specdec_sequence_new(specdec_model *model);
void specdec_sequence_free(specdec_sequence *sequence);
int64_t specdec_sequence_length(const specdec_sequence *sequence);
/* Commit `path`, rows of the tree, each the child of the one before, and drop the other rows. */
int32_t specdec_sequence_commit(specdec_sequence *sequence, const int32_t *path, int32_t nodes);
/* Drop the drafted rows and all positions from `length` on. */
int32_t specdec_sequence_restore(specdec_sequence *sequence, int64_t length);

/* ---- Steps -------------------------------------------------------------------------------------------------------- */

enum { SPECDEC_NONE = 0, SPECDEC_LAST = 1, SPECDEC_ALL = 2 };

/* The rows of one sequence in a step. A sequence must not be in two parts of a step. */
typedef struct {
  specdec_sequence *sequence;
  /* [rows]: the parent of each row, counted from the tree's first row; -1: the last committed position. NULL: each row
   * is the child of the one before. */
  const int32_t *parents;
  int32_t rows;
  int32_t stay;   /* the rows are a chain and are committed at once (`parents` NULL) */
  int32_t grow;   /* the rows extend the tree of the steps before, which is dropped otherwise */
  int32_t logits; /* rows that need logits: SPECDEC_NONE, _LAST or _ALL */
  int32_t rotation; /* index of the first rotation of its layers */
  int32_t ends;   /* whether the hidden states after the last layer are computed for all rows; otherwise those of rows
                     without logits may stay unwritten */
} specdec_part;

typedef struct {
  int32_t version;
  int32_t threads; /* at most, including the caller's */
  int32_t parts;
  int32_t features;            /* number of hidden states to return */
  const specdec_part *part;    /* [parts] */
  const int64_t *tokens;       /* of the rows of all parts, in order; NULL: see `input` */
  const float *input;          /* [rows, hidden]: input of the first layer, if `tokens` is NULL */
  const float *qkv_addition;   /* [rows, qkv]: added to queries, keys and values of the first layer; may be NULL */
  const float *cosine, *sine;  /* [rotations, positions, rotary / 2]: the first half is rotated with the second */
  int64_t positions;
  int32_t rotations;
  float *logits;               /* [rows with logits, vocabulary of `unembed`], in the order of the rows */
  const int32_t *feature;      /* [features]: 0 to layers - 1: inputs of that layer; layers: after the final norm;
                                  layers + 1: before it */
  float *const *hidden;        /* [features] -> [rows, hidden] */
} specdec_step;

/* One step of a model for all its parts at once. Calls for the same model wait for each other. */
int32_t specdec_model_step(specdec_model *model, const specdec_step *step);

#ifdef __cplusplus
}
#endif

#pragma GCC visibility pop

#endif
