/* Measures Open MPI's collectives (float; sum where there is a reduction) by the rules of `paceline perf`:
 *
 *   out of place but for the broadcast, which has one buffer; MPI_Barrier before each call; the time of a call is the
 *   maximum over the ranks; every element is checked in the first call and in the last measured one, before which the
 *   output is spoilt; warm-up and number of calls as in crates/cli/src/perf/calls.rs, whose constants are arguments.
 *
 * Usage: openmpi PIPES PROBE_CALLS CALLS_MIN CALLS_MAX WARM_UP_SHARE
 * Each rank reads lines `COLLECTIVE BYTES SECONDS` from the named pipe PIPES/RANK, where it sleeps while others are
 * measured. BYTES are those of the larger of input and output. Rank 0 prints one JSON object when all are ready, and one
 * for each line.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The pattern repeats after so many elements; a prime, so that a block in a wrong place does not look right. */
enum { PERIOD = 31 };

static int rank, ranks;
static int probe_calls, calls_min, calls_max, warm_up_share;

/* One collective on data of one size. */
struct subject {
    const char *name;
    /* Elements in a block, in the input and in the output. */
    size_t block, inputs, outputs;
    float *input, *output;
};

/* What a rank contributes: small whole numbers, so that the sum of any number of ranks up to thousands is exact. */
static float contribution(int of_rank, size_t index) {
    return (float)((index * 7 + (size_t)of_rank * 13) % PERIOD);
}

static float reduced(int unused, size_t index) {
    (void)unused;
    float sum = 0;
    for (int other = 0; other < ranks; other++)
        sum += contribution(other, index);
    return sum;
}

typedef float value_function(int of_rank, size_t index);

/* Elements that are not what they must be, from `start` in the data of a rank or of the reduction. */
static long differing(const float *data, size_t count, value_function *value, int of_rank, size_t start) {
    float period[PERIOD];
    for (size_t place = 0; place < PERIOD; place++)
        period[place] = value(of_rank, start + place);
    long wrong = 0;
    for (size_t index = 0; index < count; index++)
        wrong += data[index] != period[index % PERIOD];
    return wrong;
}

static void fill(float *data, size_t count) {
    float period[PERIOD];
    for (size_t place = 0; place < PERIOD; place++)
        period[place] = contribution(rank, place);
    for (size_t index = 0; index < count; index++)
        data[index] = period[index % PERIOD];
}

static int is(const struct subject *subject, const char *name) {
    return strcmp(subject->name, name) == 0;
}

static void spoil(struct subject *subject) {
    for (size_t index = 0; index < subject->outputs; index++)
        subject->output[index] = NAN;
}

static long count_wrong(const struct subject *subject) {
    long wrong = 0, total = 0;
    const size_t block = subject->block, own = (size_t)rank * block;
    if (is(subject, "all-reduce")) {
        wrong = differing(subject->output, block, reduced, 0, 0);
    } else if (is(subject, "reduce-scatter")) {
        wrong = differing(subject->output, block, reduced, 0, own);
    } else if (is(subject, "broadcast")) {
        wrong = differing(subject->output, block, contribution, 0, 0);
    } else {
        size_t start = is(subject, "all-to-all") ? own : 0;
        for (int other = 0; other < ranks; other++)
            wrong += differing(subject->output + (size_t)other * block, block, contribution, other, start);
    }
    MPI_Allreduce(&wrong, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return total;
}

/* Seconds of this rank for one call. */
static double timed_call(struct subject *subject) {
    int count = (int)subject->block;
    int kind = subject->name[0] == 'b' ? 'b' : subject->name[0] == 'r' ? 's' : subject->name[4];
    /* The broadcast's root gets its data back before every call, as in `paceline perf`. */
    if (kind == 'b' && rank == 0)
        fill(subject->output, subject->outputs);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    switch (kind) {
    case 'r': /* all-reduce */
        MPI_Allreduce(subject->input, subject->output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case 'g': /* all-gather */
        MPI_Allgather(subject->input, count, MPI_FLOAT, subject->output, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case 't': /* all-to-all */
        MPI_Alltoall(subject->input, count, MPI_FLOAT, subject->output, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case 's': /* reduce-scatter */
        MPI_Reduce_scatter_block(subject->input, subject->output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case 'b': /* broadcast */
        MPI_Bcast(subject->output, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    }
    return MPI_Wtime() - start;
}

/* How many calls fit into the time, agreed by all ranks. The probing calls are part of the warm-up. */
static int agree_on_calls(struct subject *subject, double seconds) {
    double own = 0, slowest = 0;
    for (int call = 0; call < probe_calls; call++) {
        double start = MPI_Wtime();
        timed_call(subject);
        own = MPI_Wtime() - start;
    }
    MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double calls = seconds / fmax(slowest, 1e-9);
    return (int)fmin(fmax(calls, calls_min), calls_max);
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static float *allocate(size_t count) {
    float *data = malloc((count ? count : 1) * sizeof(float));
    if (!data) {
        fprintf(stderr, "rank %d: no memory for %zu elements\n", rank, count);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return data;
}

static void measure(const char *name, size_t bytes, double seconds) {
    struct subject subject = {.name = name};
    int whole = strcmp(name, "all-reduce") == 0 || strcmp(name, "broadcast") == 0;
    size_t blocks = whole ? 1 : (size_t)ranks;
    subject.block = bytes / sizeof(float) / blocks;
    if (subject.block == 0)
        subject.block = 1;
    int gathers = strcmp(name, "all-gather") == 0, scatters = strcmp(name, "reduce-scatter") == 0;
    subject.inputs = strcmp(name, "broadcast") == 0 ? 0 : subject.block * (gathers ? 1 : blocks);
    subject.outputs = subject.block * (scatters ? 1 : blocks);
    subject.input = allocate(subject.inputs);
    subject.output = allocate(subject.outputs);
    double own[calls_max], times[calls_max];

    fill(subject.input, subject.inputs);
    spoil(&subject);
    timed_call(&subject);
    long wrong = count_wrong(&subject);
    int calls = agree_on_calls(&subject, seconds);
    for (int call = 0; call < calls / warm_up_share; call++)
        timed_call(&subject);
    for (int call = 0; call < calls; call++) {
        if (call == calls - 1)
            spoil(&subject);
        own[call] = timed_call(&subject);
    }
    wrong += count_wrong(&subject);

    MPI_Reduce(own, times, calls, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(times, (size_t)calls, sizeof(double), ascending);
        /* The smallest time that is not exceeded by half of the calls. */
        double median = times[(calls + 1) / 2 - 1];
        printf("{\"bytes\":%zu,\"iterations\":%d,\"p50_us\":%.3f,\"wrong\":%ld}\n",
               subject.block * blocks * sizeof(float), calls, median * 1e6, wrong);
        fflush(stdout);
    }
    free(subject.input), free(subject.output);
}

/* A parameter of Open MPI as it is in force now; -1 if there is none. */
static int parameter(const char *name) {
    int index, words, value[64] = {0};
    MPI_T_cvar_handle handle;
    if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS)
        return -1;
    if (MPI_T_cvar_handle_alloc(index, NULL, &handle, &words) != MPI_SUCCESS)
        return -1;
    if (words > 64 || MPI_T_cvar_read(handle, value) != MPI_SUCCESS)
        value[0] = -1;
    MPI_T_cvar_handle_free(&handle);
    return value[0];
}

int main(int argc, char **argv) {
    int provided;
    if (argc != 6)
        return 2;
    probe_calls = atoi(argv[2]), calls_min = atoi(argv[3]), calls_max = atoi(argv[4]), warm_up_share = atoi(argv[5]);
    MPI_Init(&argc, &argv);
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char path[4096], line[256], name[64];
    snprintf(path, sizeof path, "%s/%d", argv[1], rank);
    FILE *commands = fopen(path, "r");
    if (!commands) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 1);
        return 1;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        int copy = parameter("btl_vader_single_copy_mechanism");
        printf("{\"yields_when_idle\":%d,\"single_copy_mechanism\":%d}\n", parameter("mpi_yield_when_idle"),
               copy >= 0 ? copy : parameter("smsc"));
        fflush(stdout);
    }
    size_t bytes;
    double seconds;
    while (fgets(line, sizeof line, commands) && sscanf(line, "%63s %zu %lf", name, &bytes, &seconds) == 3)
        measure(name, bytes, seconds);
    MPI_T_finalize();
    MPI_Finalize();
    return 0;
}
