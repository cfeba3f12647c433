/* A program that trains, as far as it has to do with policies: it is linked with the library, as the header says. The test beside it compiles
 * and runs it. */
#include "paceline_nccl.h"

#include <stdio.h>
#include <string.h>

#define HOLDS(what)                                             \
    do {                                                        \
        if (!(what)) {                                          \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);  \
            return 1;                                           \
        }                                                       \
    } while (0)

static const char TOML[] = "schema = 1\nversion = 3\n[[call]]\nfunction = \"AllReduce\"\nalgorithm = \"Ring\"\nprotocol = \"LL\"\n";
static const char CSV[] = "# schema = 1, version = 4\nfunction,algorithm,protocol\nAllReduce,Tree,Simple\n";
static const char OTHER[] = "schema = 9\nversion = 1\n";

int main(void) {
    char message[200] = "untouched", small[8];
    uint64_t asked = 9, answered = 9, first, second;
    struct paceline_nccl_sample sample;

    HOLDS(paceline_nccl_interface() == 4);
    HOLDS(paceline_nccl_policy_version() == 0 && paceline_nccl_policy_fingerprint() == 0);

    /* What is refused says why, in as much room as there is, and nothing is prepared. */
    HOLDS(paceline_nccl_policy_prepare(OTHER, strlen(OTHER), message, sizeof message) == 1);
    HOLDS(strstr(message, "schema 9") != NULL);
    memset(small, 'x', sizeof small);
    HOLDS(paceline_nccl_policy_prepare(OTHER, strlen(OTHER), small, sizeof small) == 1);
    HOLDS(strlen(small) == sizeof small - 1 && strncmp(small, message, sizeof small - 1) == 0);
    HOLDS(paceline_nccl_policy_prepare(NULL, 0, NULL, 0) == 1);
    HOLDS(paceline_nccl_prepared_version() == 0 && paceline_nccl_prepared_fingerprint() == 0);

    /* Prepared, compared with other ranks, activated. */
    HOLDS(paceline_nccl_policy_prepare(TOML, strlen(TOML), message, sizeof message) == 0);
    HOLDS(message[0] == '\0');
    first = paceline_nccl_prepared_fingerprint();
    HOLDS(first != 0 && paceline_nccl_prepared_version() == 3 && paceline_nccl_policy_version() == 0);
    HOLDS(paceline_nccl_policy_activate(first + 1) == 1 && paceline_nccl_policy_version() == 0);
    HOLDS(paceline_nccl_policy_activate(first) == 0);
    HOLDS(paceline_nccl_policy_version() == 3 && paceline_nccl_policy_fingerprint() == first);
    HOLDS(paceline_nccl_prepared_version() == 0);

    /* The next one is discarded, and the third takes its place. */
    HOLDS(paceline_nccl_policy_prepare(CSV, strlen(CSV), message, sizeof message) == 0);
    second = paceline_nccl_prepared_fingerprint();
    paceline_nccl_policy_discard();
    HOLDS(paceline_nccl_policy_activate(second) == 1 && paceline_nccl_policy_version() == 3);
    HOLDS(paceline_nccl_policy_prepare(CSV, strlen(CSV), message, sizeof message) == 0);
    HOLDS(paceline_nccl_policy_activate(second) == 0);
    HOLDS(second != first && paceline_nccl_policy_version() == 4 && paceline_nccl_policy_fingerprint() == second);

    /* There is no NCCL here. */
    paceline_nccl_decisions(&asked, &answered);
    HOLDS(asked == 0 && answered == 0);
    paceline_nccl_decisions(NULL, NULL);
    HOLDS(paceline_nccl_record(1) == 1);
    HOLDS(paceline_nccl_samples(&sample, 1) == 0 && paceline_nccl_samples_lost() == 0);

    HOLDS(paceline_nccl_costs(4, 1024, 8, 1, NULL, 0, NULL, NULL) == 0);

    paceline_nccl_policy_clear();
    HOLDS(paceline_nccl_policy_version() == 0 && paceline_nccl_policy_fingerprint() == 0);
    puts("pushed");
    return 0;
}
