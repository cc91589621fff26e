/* The C interface of EAGLE and Medusa heads. The conventions of specdec.h apply. */
#ifndef SPECDEC_HEADS_H
#define SPECDEC_HEADS_H

#include "specdec.h"

#pragma GCC visibility push(default)

#ifdef __cplusplus
extern "C" {
#endif

/* ---- EAGLE: one layer over pairs of a token and a hidden state ---------------------------------------------------- */

/* A head. With `entry` the layer's input is the token's vector plus entry(hidden state). Without it the input is the
 * hidden state, and the token's vector is added to queries, keys and values. Nothing is copied. */
typedef struct {
  int32_t version;
  int32_t features;              /* hidden states of the target per pair */
  int64_t feature;               /* width of one of them */
  int64_t vocabulary;            /* rows of `token` */
  int64_t draft_vocabulary;      /* width of a row of logits */
  specdec_model *model;          /* the layer, final norm and output of the head; without an embedding */
  const specdec_product *join;   /* [features * feature] -> hidden; NULL: the only feature is the hidden state */
  const specdec_product *entry;  /* hidden -> hidden; may be NULL, see above */
  const void *token;             /* [vocabulary, width of a token] */
  int32_t token_kind;            /* f32, bf16 or f16 */
  int64_t token_width;
  const float *token_norm;               /* [token_width]; NULL: none */
  const specdec_product *token_product;  /* token_width -> the token's vector; NULL: `token` has the vectors */
  const int64_t *target_ids;  /* [draft_vocabulary]: the target's ids of the draft vocabulary; NULL: the same */
  const float *feature_norm;  /* [features * feature]: before `join`; NULL: none */
  const float *before_norm;   /* [hidden]: of the hidden state before the layer; NULL: none */
  int64_t feature_norm_width; /* numbers of the features that are normed together */
  int32_t normed;             /* whether the next level's input are hidden states after the final norm, not before it */
} specdec_head_config;

typedef struct specdec_head specdec_head;
typedef struct specdec_head_sequence specdec_head_sequence;

specdec_head *specdec_head_new(const specdec_head_config *config, int32_t *error);
/* All its sequences must have been freed. */
void specdec_head_free(specdec_head *head);
specdec_head_sequence *specdec_head_sequence_new(specdec_head *head);
void specdec_head_sequence_free(specdec_head_sequence *sequence);

/* Arguments of every call besides its parts: see specdec_step. */
typedef struct {
  int32_t threads;
  const float *cosine, *sine;
  int64_t positions;
} specdec_head_step;

/* New pairs of a sequence. Its drafted rows are dropped. */
typedef struct {
  specdec_head_sequence *sequence;
  const int64_t *tokens;        /* [pairs] */
  const float *const *features; /* [features] -> [some rows, feature]: the target's hidden states */
  const int32_t *rows;          /* [pairs]: the tokens' rows in `features`; NULL: the first ones */
  int32_t pairs;                /* 0 is allowed if the sequence has pairs already */
} specdec_pairs;

/* Add the pairs of several sequences. `logits` [parts, draft_vocabulary]: after the last pair of each; may be NULL. */
int32_t specdec_head_read(specdec_head *head, const specdec_head_step *step, const specdec_pairs *pairs, int32_t parts,
                          float *logits);

/* One level of a draft: children of rows of the level before, or of the last pair, which is row 0. */
typedef struct {
  specdec_head_sequence *sequence;
  const int64_t *tokens; /* [rows] */
  const int64_t *above;  /* [rows]; NULL: row 0 for all */
  int32_t rows;
} specdec_level;

/* `logits` [rows of all parts, draft_vocabulary]. */
int32_t specdec_head_levels(specdec_head *head, const specdec_head_step *step, const specdec_level *levels,
                            int32_t parts, float *logits);

/* A draft of the likeliest tokens: new pairs, limits, and the result. */
typedef struct {
  specdec_pairs pairs;
  int32_t levels, width; /* maximum depth; children per node and nodes per level (of trees), all >= 1 */
  int32_t nodes;         /* maximum number of drafted tokens, >= 1 */
  double least;          /* minimum log-probability of a token; -infinity: none */
  int64_t *tokens;       /* [nodes], written: the target's ids */
  int32_t *parents;      /* [nodes], written: nodes, 0 = the root, 1 = the first drafted */
  int32_t drafted;       /* written */
} specdec_draft;

/* Chains of the likeliest tokens, for several sequences. */
int32_t specdec_head_chains(specdec_head *head, const specdec_head_step *step, specdec_draft *drafts, int32_t parts);

/* EAGLE-2's dynamic trees (Li et al. 2024, arXiv 2406.16858). */
int32_t specdec_head_trees(specdec_head *head, const specdec_head_step *step, specdec_draft *drafts, int32_t parts);

/* ---- Medusa: heads of residual blocks on one hidden state --------------------------------------------------------- */

/* Head i applies x + silu(block(x)) for each of its `layers` blocks, then its output. */
typedef struct {
  int32_t version;
  int32_t heads, layers;
  int64_t hidden, vocabulary;
  const specdec_product *const *blocks;  /* [heads * layers]: hidden -> hidden, grouped by head */
  const specdec_product *const *outputs; /* [heads]: hidden -> vocabulary */
} specdec_medusa;

/* `logits` [rows, heads, vocabulary] of hidden states `hidden` [rows, hidden]. */
int32_t specdec_medusa_run(const specdec_medusa *medusa, const float *hidden, int64_t rows, float *logits,
                           int32_t threads);

/* ---- Both --------------------------------------------------------------------------------------------------------- */

/* Log-probabilities `values` and ids `places` [rows, width] of the likeliest tokens of every row of logits, best first,
 * ties in order of ids. `width` <= vocabulary. */
int32_t specdec_likeliest(const float *logits, int64_t rows, int64_t vocabulary, int32_t width, float *values,
                          int64_t *places);

#ifdef __cplusplus
}
#endif

#pragma GCC visibility pop

#endif
