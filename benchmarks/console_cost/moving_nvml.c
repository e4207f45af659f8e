/* The tests' fake driver with values that move by themselves, hiccups, and a count of the calls made.
 *
 * Built with -finstrument-functions (benchmarks/fake_box.py): the compiler has every function call
 * __cyg_profile_func_enter first, and what comes from outside this library is a program's call.
 *
 *   NVML_CALLS_FILE   a file of 8 bytes: the number of calls, all processes together
 *   NVML_HICCUPS      "MS N": every N-th call, on the average, takes MS longer
 */
/* The fake knows two clock domains; programs ask for the graphics and the video clock too. */
#define nvmlDeviceGetClockInfo clock_of_two_domains
#define nvmlDeviceGetMaxClockInfo max_clock_of_two_domains
#include "../../tests/fakes/nvml/fake_nvml.c"
#undef nvmlDeviceGetClockInfo
#undef nvmlDeviceGetMaxClockInfo

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#define QUIET __attribute__((no_instrument_function))
extern char __ehdr_start __attribute__((visibility("hidden"))), _end __attribute__((visibility("hidden")));

static int domain_of_two(int domain) { return domain == 2 ? 2 : domain >= 0 && domain <= 3 ? 1 : domain; }
int nvmlDeviceGetClockInfo(Gpu *g, int domain, unsigned *mhz) { return clock_of_two_domains(g, domain_of_two(domain), mhz); }
int nvmlDeviceGetMaxClockInfo(Gpu *g, int domain, unsigned *mhz) { return max_clock_of_two_domains(g, domain_of_two(domain), mhz); }

/* --- waves --------------------------------------------------------------------------------------------------------- */

static QUIET double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

/* A slow swing with a quick tremble on it, between `low` and `high`; `phase` sets quantities and GPUs apart. */
static QUIET double wave(double t, double phase, double low, double high) {
    return low + (high - low) * (0.5 + 0.4 * sin(t / 4.1 + phase) + 0.1 * sin(t / 0.7 + 3 * phase));
}

static QUIET void move(Gpu *g, int i, double t) {
    double busy = wave(t, i, 30, 99);
    g->utilization_pct = busy, g->memory_utilization_pct = wave(t, i + 1, 5, 70);
    g->power_mw = 120000 + busy * 5600, g->energy_mj = 5e9 + t * 480000, g->temperature_c = 35 + busy * 0.4;
    g->fields[186].value = g->power_mw + wave(t, i + 2, -9000, 9000), g->fields[82].value = 40 + busy * 0.35;
    g->sm_clock_mhz = 15 * floor(wave(t, i + 3, 117, 132));
    g->memory_used_bytes = wave(t, i + 4, 20e9, 130e9);
    g->pcie_rx_kb = wave(t, i + 5, 1e5, 25e6), g->pcie_tx_kb = wave(t, i + 6, 1e5, 9e6);
    for (int m = 1; m <= 13; m++) g->gpm[m] = m == 2 ? busy : busy * wave(t, i + m, 0.05, 0.95);
    g->gpm[20] = g->pcie_tx_kb / 1024, g->gpm[21] = g->pcie_rx_kb / 1024;
    g->gpm[60] = g->gpm[61] = 0;
    for (int m = 62; m < 98; m++) g->gpm[60 + m % 2] += g->gpm[m] = wave(t, i + m, 0, 20000);
    for (int k = 0; k < g->task_count; k++) g->tasks[k].sm_pct = busy / g->task_count;
}

static QUIET void move_all(double t) {
    static double moved;
    if (!gpus || t - moved < 0.05) return;
    moved = t;
    for (int i = 0; i < gpu_count; i++) move(&gpus[i], i, t);
}

/* --- every call from outside ----------------------------------------------------------------------------------------- */

static uint64_t spare_count, *calls = &spare_count;
static int hiccup_ms, hiccup_in;

__attribute__((constructor)) QUIET static void read_environment(void) {
    const char *path = getenv("NVML_CALLS_FILE"), *hiccups = getenv("NVML_HICCUPS");
    int file = path ? open(path, O_RDWR) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (page != MAP_FAILED) calls = page;
    if (hiccups && sscanf(hiccups, "%d %d", &hiccup_ms, &hiccup_in) != 2) hiccup_in = 0;
}

/* Hidden: libc has functions of these names too, and would come first. */
#define HOOK QUIET __attribute__((visibility("hidden")))
HOOK void __cyg_profile_func_enter(void *function, void *caller);
HOOK void __cyg_profile_func_exit(void *function, void *caller);

void __cyg_profile_func_enter(void *function, void *caller) {
    (void)function;
    if ((char *)caller >= &__ehdr_start && (char *)caller < &_end) return;
    __atomic_fetch_add(calls, 1, __ATOMIC_RELAXED);
    if (hiccup_in > 0 && rand() % hiccup_in == 0) usleep((useconds_t)hiccup_ms * 1000);
    move_all(seconds_now());
}

void __cyg_profile_func_exit(void *function, void *caller) { (void)function, (void)caller; }
