/* Policies for libnccl-tuner-paceline.so, and what calls took, from the process that trains; docs/nccl.md says when to call
 * what. NCCL must have loaded the same file: one library in a process has one policy. Every function may be called from any
 * thread, and none waits for another rank. */
#ifndef paceline_nccl_h
#define paceline_nccl_h

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a collective took on this rank. Compare the smallest longest_ns of all ranks: it contains the wait for the last one. */
struct paceline_nccl_sample {
    uint64_t communicator; /* NCCL's number of it, the same on all ranks; those of one parent may share it */
    uint64_t instance;     /* which of this process's communicators: counted as they begin, from 1 on */
    uint64_t sequence;     /* NCCL's count, by communicator and function; replays of a CUDA graph need not raise it */
    uint64_t bytes;        /* as rules count: of the larger buffer; with all-gather and reduce-scatter of all ranks together */
    uint64_t longest_ns;   /* the longest of the channels' times, of the GPU's clock */
    uint64_t span_ns;      /* from the first channel's start to the last one's end */
    uint64_t policy;       /* version of the policy that decided when it began, or 0 */
    int32_t rank;
    uint32_t ranks; /* of the communicator */
    uint32_t hosts;
    int32_t function;  /* NCCL's numbers; -1: a name that is not known */
    int32_t algorithm;
    int32_t protocol;
    uint32_t channels; /* that it ran with */
    uint32_t threads;  /* of each channel */
};

/* 4 in this header; raised when a function or the sample changes. */
uint32_t paceline_nccl_interface(void);

/* Checks a policy (TOML or CSV, UTF-8, not terminated) and keeps it. 0: done. 1: refused, and the reason stands in message,
 * terminated and cut to capacity bytes. Either way one that was prepared before is forgotten; the one that decides goes on. */
int paceline_nccl_policy_prepare(const char *text, size_t length, char *message, size_t capacity);

/* The prepared policy decides from the next call on, if it has this fingerprint: on all ranks together, with no call under way.
 * 0: done. 1: none with it is prepared, and nothing has changed. */
int paceline_nccl_policy_activate(uint64_t fingerprint);

/* Forgets the prepared policy. */
void paceline_nccl_policy_discard(void);

/* Everything is left to NCCL from the next call on: on all ranks together. */
void paceline_nccl_policy_clear(void);

/* Version and fingerprint of the policy that decides, and of the prepared one; 0: there is none. Equal on all ranks, or the
 * job may hang. */
uint64_t paceline_nccl_policy_version(void);
uint64_t paceline_nccl_policy_fingerprint(void);
uint64_t paceline_nccl_prepared_version(void);
uint64_t paceline_nccl_prepared_fingerprint(void);

/* How often NCCL has asked about a call, and how often it got an answer. Either place may be null. */
void paceline_nccl_decisions(uint64_t *asked, uint64_t *answered);

/* Records what calls take (1), or stops (0). 0: done. 1: NCCL has no communicator with this library as its profiler now; it
 * holds from the next one on. */
int paceline_nccl_record(int wanted);

/* Fetches samples, the oldest first; returns how many. docs/json.md says how a program writes them down for `paceline tune`, with
 * what an iteration took and what calls are for. */
size_t paceline_nccl_samples(struct paceline_nccl_sample *samples, size_t capacity);

/* What NCCL's own model says of calls of this kind (function, power of two of bytes, ranks, hosts): the table of costs, in us, that it
 * has handed over with the first of them, algorithm after algorithm with a cost for each protocol; -1: NCCL does not offer it. Returns
 * how many there are, and writes as many as there is room for; of_bytes gets the bytes of that call, protocols the costs of an algorithm.
 * Either may be null. 0: there is none, as up to NCCL 2.21. */
size_t paceline_nccl_costs(int function, uint64_t bytes, uint32_t ranks, uint32_t hosts, float *costs_us, size_t capacity,
                           uint64_t *of_bytes, uint32_t *protocols);

/* How many collectives were recorded and became no sample: there was no room, or NCCL gave no times for all channels. */
uint64_t paceline_nccl_samples_lost(void);

#ifdef __cplusplus
}
#endif

#endif
