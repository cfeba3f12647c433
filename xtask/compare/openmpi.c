/* Measures MPI_Allreduce (float, sum) by the rules of `paceline perf`:
 *
 *   out of place; MPI_Barrier before each call; the time of a call is the maximum over the ranks; every element of the
 *   result is checked, after the first call and after the last one; warm-up and number of calls as in
 *   crates/cli/src/perf/schedule.rs.
 *
 * Usage: openmpi SECONDS BYTES...
 * Rank 0 prints one JSON object per size. The exit status is 1 if any element was wrong.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/* Keep in step with crates/cli/src/perf/schedule.rs. */
enum { PROBE_CALLS = 3, CALLS_MIN = 5, CALLS_MAX = 1000, WARM_UP_SHARE = 10 };

static int rank, ranks;

/* What a rank contributes: small whole numbers, so that the sum of any number of ranks up to thousands is exact. */
static float contribution(int of_rank, size_t index) {
    return (float)((index * 7 + (size_t)of_rank * 13) % 31);
}

static void fill(float *data, size_t count) {
    for (size_t index = 0; index < count; index++)
        data[index] = contribution(rank, index);
}

static void poison(float *data, size_t count) {
    for (size_t index = 0; index < count; index++)
        data[index] = NAN;
}

static long count_wrong(const float *data, size_t count) {
    long wrong = 0, total = 0;
    for (size_t index = 0; index < count; index++) {
        float expected = 0;
        for (int other = 0; other < ranks; other++)
            expected += contribution(other, index);
        wrong += data[index] != expected;
    }
    MPI_Allreduce(&wrong, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return total;
}

/* Seconds of this rank for one call. */
static double timed_call(const float *input, float *output, size_t count) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    MPI_Allreduce(input, output, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return MPI_Wtime() - start;
}

/* How many calls fit into the time, agreed by all ranks. The probing calls are part of the warm-up. */
static int agree_on_calls(const float *input, float *output, size_t count, double seconds) {
    double own = 0, slowest = 0;
    for (int call = 0; call < PROBE_CALLS; call++) {
        double start = MPI_Wtime();
        timed_call(input, output, count);
        own = MPI_Wtime() - start;
    }
    MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double calls = seconds / fmax(slowest, 1e-9);
    return (int)fmin(fmax(calls, CALLS_MIN), CALLS_MAX);
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The smallest time that is not exceeded by this share of the calls. */
static double percentile(const double *sorted, int calls, double share) {
    int place = (int)ceil(share * calls) - 1;
    return sorted[place < 0 ? 0 : place];
}

static long measure(size_t bytes, double seconds) {
    size_t count = bytes / sizeof(float);
    float *input = malloc(count * sizeof(float)), *output = malloc(count * sizeof(float));
    double *own = malloc(CALLS_MAX * sizeof(double)), *times = malloc(CALLS_MAX * sizeof(double));
    if (!input || !output || !own || !times) {
        fprintf(stderr, "rank %d: no memory for %zu bytes\n", rank, bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
        return 1;
    }
    fill(input, count);
    poison(output, count);
    timed_call(input, output, count);
    long wrong = count_wrong(output, count);

    int calls = agree_on_calls(input, output, count, seconds);
    for (int call = 0; call < calls / WARM_UP_SHARE; call++)
        timed_call(input, output, count);
    poison(output, count);
    for (int call = 0; call < calls; call++)
        own[call] = timed_call(input, output, count);
    wrong += count_wrong(output, count);

    MPI_Reduce(own, times, calls, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(times, (size_t)calls, sizeof(double), ascending);
        printf("{\"bytes\":%zu,\"iterations\":%d,\"min_us\":%.3f,\"p50_us\":%.3f,\"p99_us\":%.3f,\"max_us\":%.3f,"
               "\"wrong\":%ld}\n",
               count * sizeof(float), calls, times[0] * 1e6, percentile(times, calls, 0.5) * 1e6,
               percentile(times, calls, 0.99) * 1e6, times[calls - 1] * 1e6, wrong);
        fflush(stdout);
    }
    free(input), free(output), free(own), free(times);
    return wrong;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long wrong = 0;
    for (int argument = 2; argument < argc; argument++)
        wrong += measure(strtoull(argv[argument], NULL, 10), atof(argv[1]));
    MPI_Finalize();
    return argc < 3 || wrong != 0;
}
