/* The C interface of the native step: what Python calls through ctypes.
 *
 * Every matrix is row-major float32 unless said otherwise, every pointer is the caller's and is only read or written
 * during the call, except where a function says that it keeps it. Functions that can fail return 0 or one of the codes
 * below, or NULL; nothing has changed then.
 *
 * Whatever else is computed in the same step, on how many threads, and whether tokens come as a prompt, one by one, in
 * a chain or in a tree: the results of a row have the same bits.
 */
#ifndef SPECDEC_H
#define SPECDEC_H

#include <stdint.h>

#pragma GCC visibility push(default) /* everything else is hidden */

#ifdef __cplusplus
extern "C" {
#endif

/* Raised with every change of this file. Structs carry it, so that another layout is refused and not read. */
#define SPECDEC_VERSION 3

enum {
  SPECDEC_OK = 0,
  SPECDEC_BAD_VERSION = -1, /* a struct has another version */
  SPECDEC_NO_MEMORY = -2,
  SPECDEC_BAD_TOKEN = -3,    /* a token is not in the vocabulary */
  SPECDEC_BAD_POSITION = -4, /* a row lies behind the rotations that were given */
  SPECDEC_BAD_TREE = -5,     /* a parent that does not come before its row, or a path that is none */
  SPECDEC_BAD_SHAPE = -6     /* products or sizes that do not fit together */
};

/* What the library is: its version, a fingerprint of the sources that it was compiled from, and the name of the
 * instruction set. */
int32_t specdec_version(void);
const char *specdec_sources(void);
const char *specdec_variant(void);

/* The instruction sets of this processor for which variants exist, best first, separated by spaces. To be asked of the
 * library "processor", which every processor of its kind can run. */
const char *specdec_runnable(void);

/* ---- Products with a fixed weight: y [rows, out] = x [rows, in] W^T + bias ---------------------------------------- */

/* How numbers are kept. int8 and int4 are rounded from float weights here. */
enum { SPECDEC_F32 = 0, SPECDEC_BF16 = 1, SPECDEC_F16 = 2, SPECDEC_INT8 = 3, SPECDEC_INT4 = 4 };

typedef struct specdec_product specdec_product;

/* `weight` [out, in] in type `source` (f32, bf16 or f16) and `bias` [out] or NULL are copied. NULL: no memory. */
specdec_product *specdec_product_new(int32_t kind, int32_t source, const void *weight, int64_t out, int64_t in,
                                     const float *bias);
void specdec_product_free(specdec_product *product);
int64_t specdec_product_bytes(const specdec_product *product);

/* Rows lie `ldx` and `ldy` floats apart. `add`: y += product. */
int32_t specdec_product_run(const specdec_product *product, const float *x, int64_t ldx, int64_t rows, float *y,
                            int64_t ldy, int32_t add, int32_t threads);

/* ---- Models ------------------------------------------------------------------------------------------------------- */

/* A gated MLP: active(gate) * up. */
typedef struct {
  const specdec_product *gate_up; /* hidden -> 2 * inner: gate, then up */
  const specdec_product *down;    /* inner -> hidden */
} specdec_mlp;

enum { SPECDEC_SILU = 0, SPECDEC_GELU_TANH = 1 };

/* One decoder layer. Products and norms are not copied: they must live as long as the model. A norm that is NULL is
 * left out. */
typedef struct {
  const float *input_norm;  /* [hidden]: before the attention */
  const float *query_norm;  /* [width]: of every query head; with `whole_norms` of all of them, [queries * width] */
  const float *key_norm;    /* [width] or [keys * width] */
  const float *output_norm; /* [hidden]: of what the attention adds */
  const float *mlp_norm;    /* [hidden]: before the MLP */
  const float *down_norm;   /* [hidden]: of what the MLP adds */
  const specdec_product *qkv;    /* hidden -> (queries + 2 keys) * width: query, key and value heads in this order */
  const specdec_product *output; /* queries * width -> hidden */
  const specdec_product *router; /* hidden -> experts; NULL: the layer has one MLP, through which all rows go */
  const specdec_mlp *mlp;        /* one or [experts] of the same shape, copied */
  int32_t window;                /* a row sees so many positions, its own the last; 0: all */
  int32_t rotation;              /* which of the rotations of a step; -1: none */
} specdec_layer;

typedef struct {
  int32_t version;
  int32_t layers, hidden, queries, keys, width; /* `width` of a head, even; `keys` divides `queries` */
  int32_t rotary;      /* how many of a head's numbers are rotated, even; the others stay */
  int32_t gate;        /* SPECDEC_SILU or _GELU_TANH */
  int32_t whole_norms; /* see `query_norm` */
  int32_t experts;     /* of every layer with a router */
  int32_t chosen;      /* experts that a row goes through */
  int32_t normalize_chosen; /* their probabilities are divided by their sum */
  float epsilon;       /* of all norms */
  float embedding_scale, residual_scale, logits_scale; /* factors of what is looked up, added, and comes out */
  float attention_scale;                               /* factor of queries */
  float attention_cap, logits_cap;                     /* x becomes cap * tanh(x / cap); 0: it stays */
  int32_t embedding_kind;                                     /* f32, bf16 or f16 */
  int64_t vocabulary;                                         /* rows of the embedding */
  const void *embedding;          /* [vocabulary, hidden], not copied; NULL: steps are given their input rows */
  const float *final_norm;        /* [hidden]; NULL: none */
  const specdec_product *unembed; /* hidden -> logits; NULL: the model has none, and no logits can be wanted */
  const specdec_layer *layer;     /* [layers], copied */
} specdec_config;

typedef struct specdec_model specdec_model;

specdec_model *specdec_model_new(const specdec_config *config, int32_t *error);
/* Its sequences can only be freed afterwards. */
void specdec_model_free(specdec_model *model);
/* Bytes of a page of keys and values, and how many positions it holds; a sequence has whole pages. */
int64_t specdec_page_bytes(const specdec_model *model);
int32_t specdec_page_positions(void);
/* Bytes of all pages, those of freed sequences included, which the next ones use. */
int64_t specdec_model_memory(const specdec_model *model);
/* Bytes that steps use between their input and their output, as of now. */
int64_t specdec_model_scratch(const specdec_model *model);

/* ---- Sequences ---------------------------------------------------------------------------------------------------- */

/* Keys and values of the positions that stay (`length`), and behind them those of the rows of a tree that is being
 * computed (`drafted`), in the order in which they came. */
typedef struct specdec_sequence specdec_sequence;

specdec_sequence *specdec_sequence_new(specdec_model *model);
void specdec_sequence_free(specdec_sequence *sequence);
int64_t specdec_sequence_length(const specdec_sequence *sequence);
/* Keep `path`, rows of the drafted tree each of which continues the one before (the first has no parent), and drop the
 * others. */
int32_t specdec_sequence_commit(specdec_sequence *sequence, const int32_t *path, int32_t nodes);
/* Drop what was drafted and all positions from `length` on. */
int32_t specdec_sequence_restore(specdec_sequence *sequence, int64_t length);

/* ---- Steps -------------------------------------------------------------------------------------------------------- */

enum { SPECDEC_NONE = 0, SPECDEC_LAST = 1, SPECDEC_ALL = 2 };

/* What one sequence has computed. A sequence must not be in two parts of a step. */
typedef struct {
  specdec_sequence *sequence;
  /* [rows]: the row of the tree that each row continues, counted from the tree's first row; -1: it continues the
   * positions that stay. NULL: a chain behind the row before. */
  const int32_t *parents;
  int32_t rows;
  int32_t stay;   /* the rows are a chain behind the positions that stay, and stay themselves (`parents` NULL) */
  int32_t grow;   /* the rows continue the tree of the steps before, which otherwise is dropped */
  int32_t logits; /* for which rows: SPECDEC_NONE, _LAST or _ALL */
  int32_t rotation; /* the first of the rotations for its layers */
  int32_t ends;   /* whether hidden states after the last layer are wanted, of all rows; otherwise those of rows without
                     logits may stay unwritten */
} specdec_part;

typedef struct {
  int32_t version;
  int32_t threads; /* at most that many, the caller's own among them */
  int32_t parts;
  int32_t features;            /* how many hidden states are wanted */
  const specdec_part *part;    /* [parts] */
  const int64_t *tokens;       /* of the rows of all parts, one part after the other; NULL: see `input` */
  const float *input;          /* [rows, hidden]: what the first layer is given, where `tokens` is NULL */
  const float *qkv_addition;   /* [rows, qkv]: added to queries, keys and values of the first layer; may be NULL */
  const float *cosine, *sine;  /* [rotations, positions, rotary / 2]: first half of what is rotated against second */
  int64_t positions;
  int32_t rotations;           /* how many there are */
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
