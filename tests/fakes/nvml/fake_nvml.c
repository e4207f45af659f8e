/* A fake NVIDIA driver library: the NVML calls that gpuconsole makes, answered from a script.
 *
 * Build:  cc -shared -fPIC -o libnvidia-ml.so.1 fake_nvml.c      (build.py does it)
 * Use:    put its directory on LD_LIBRARY_PATH and name the script in FAKE_NVML_SCRIPT.
 *
 * The script is looked at before every call and read again when it has been replaced, so a test can change the machine
 * in mid-run; replace it by rename, never write it in place. One statement a line; '#' begins a comment; I is a GPU's
 * index or * for all of them; later lines win, so say "gpus" first.
 *
 *   gpus N                    how many GPUs there are (0 to 512)
 *   driver VERSION            what nvmlSystemGetDriverVersion says
 *   init_error CODE           nvmlInit fails with this nvmlReturn_t
 *   init_delay MS             nvmlInit takes this long
 *   count_error CODE          nvmlDeviceGetCount fails with this nvmlReturn_t
 *   gpu I name TEXT           the rest of the line; \xNN is a byte
 *   gpu I uuid TEXT
 *   gpu I gpm METRIC VALUE    what the GPM metric NVML_GPM_METRIC_* METRIC reads (percent or MiB/s)
 *   gpu I gpm_error METRIC CODE   that metric alone has this nvmlReturn
 *   gpu I error CALL CODE     CALL on this GPU fails with CODE (0: works again); CALL * is every call but the handle's
 *   gpu I delay CALL MS       CALL on this GPU takes this long
 *   gpu I KEY NUMBER          one of the keys in KEYS below (lost 1: every call fails with NVML_ERROR_GPU_IS_LOST)
 *
 * A script that cannot be read or understood ends the process, with the line on stderr.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { MAX_GPUS = 512, MAX_FAULTS = 48, MAX_GPM = 128, LINE = 512 };
enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15, VERSION_MISMATCH = 25 };

typedef struct { char call[64]; int code; int delay_ms; } Fault;
typedef struct {
    char name[96], uuid[96];
    double lost, power_mw, power_limit_mw, energy_mj, temperature_c, sm_clock_mhz, memory_clock_mhz;
    double utilization_pct, memory_utilization_pct, memory_total_bytes, memory_used_bytes, memory_reserved_bytes;
    double pcie_rx_kb, pcie_tx_kb, pcie_gen, pcie_width, nvlinks, gpm_support, mig;
    double gpm[MAX_GPM];
    int gpm_error[MAX_GPM];
    Fault faults[MAX_FAULTS];
    int fault_count;
} Gpu;
typedef struct { Gpu *gpu; } GpmSample;
typedef struct { unsigned id; int result; double value; const char *short_name, *long_name, *unit; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmMetricsGet;

#define KEY(name) { #name, offsetof(Gpu, name) }
static const struct { const char *name; size_t offset; } KEYS[] = {
    KEY(lost), KEY(power_mw), KEY(power_limit_mw), KEY(energy_mj), KEY(temperature_c), KEY(sm_clock_mhz),
    KEY(memory_clock_mhz), KEY(utilization_pct), KEY(memory_utilization_pct), KEY(memory_total_bytes),
    KEY(memory_used_bytes), KEY(memory_reserved_bytes), KEY(pcie_rx_kb), KEY(pcie_tx_kb), KEY(pcie_gen),
    KEY(pcie_width), KEY(nvlinks), KEY(gpm_support), KEY(mig),
};
static const int GPM_KNOWN[] = { 2, 3, 5, 10, 20, 21, 60, 61 };

static Gpu gpus[MAX_GPUS];
static int gpu_count, init_error, init_delay_ms, count_error;
static char driver[80];

/* --- the script ------------------------------------------------------------------------------------------------ */

static void refuse(const char *line) {
    fprintf(stderr, "fake_nvml: cannot understand: %s\n", line);
    _Exit(70);
}

static void reset(void) {
    gpu_count = 1;
    init_error = init_delay_ms = count_error = 0;
    strcpy(driver, "580.159.03");
    memset(gpus, 0, sizeof gpus);
    for (int i = 0; i < MAX_GPUS; i++) {
        Gpu *g = &gpus[i];
        strcpy(g->name, "NVIDIA H200");
        snprintf(g->uuid, sizeof g->uuid, "GPU-00000000-0000-0000-0000-%012d", i);
        g->power_mw = 350000, g->power_limit_mw = 700000, g->energy_mj = 5000000, g->temperature_c = 61;
        g->sm_clock_mhz = 1980, g->memory_clock_mhz = 3201, g->utilization_pct = 100, g->memory_utilization_pct = 40;
        g->memory_total_bytes = 150754820096., g->memory_used_bytes = 60e9, g->memory_reserved_bytes = 600e6;
        g->pcie_rx_kb = 12000000, g->pcie_tx_kb = 300000, g->pcie_gen = 5, g->pcie_width = 16, g->nvlinks = 18;
        g->gpm_support = 1;
        for (int m = 0; m < MAX_GPM; m++) g->gpm_error[m] = NOT_SUPPORTED;
        for (size_t k = 0; k < sizeof GPM_KNOWN / sizeof *GPM_KNOWN; k++) g->gpm_error[GPM_KNOWN[k]] = OK;
    }
}

static void copy_text(char *to, size_t size, const char *from) {
    size_t n = 0;
    while (*from && n + 1 < size) {
        unsigned byte;
        if (sscanf(from, "\\x%2x", &byte) == 1) to[n++] = (char)byte, from += 4;
        else to[n++] = *from++;
    }
    to[n] = 0;
}

static Fault *fault_of(Gpu *g, const char *call, const char *line) {
    for (int i = 0; i < g->fault_count; i++)
        if (!strcmp(g->faults[i].call, call)) return &g->faults[i];
    if (g->fault_count == MAX_FAULTS || strlen(call) >= sizeof g->faults[0].call) refuse(line);
    Fault *f = &g->faults[g->fault_count++];
    strcpy(f->call, call);
    return f;
}

static void set_gpu(Gpu *g, const char *rest, const char *line) {
    char word[64];
    int id, code, at = 0;
    double value;
    if (!strncmp(rest, "name ", 5)) { copy_text(g->name, sizeof g->name, rest + 5); return; }
    if (!strncmp(rest, "uuid ", 5)) { copy_text(g->uuid, sizeof g->uuid, rest + 5); return; }
    if (sscanf(rest, "error %63s %d", word, &code) == 2) { fault_of(g, word, line)->code = code; return; }
    if (sscanf(rest, "delay %63s %d", word, &code) == 2) { fault_of(g, word, line)->delay_ms = code; return; }
    if (sscanf(rest, "gpm_error %d %d", &id, &code) == 2 && id >= 0 && id < MAX_GPM) { g->gpm_error[id] = code; return; }
    if (sscanf(rest, "gpm %d %lf", &id, &value) == 2 && id >= 0 && id < MAX_GPM) {
        g->gpm[id] = value, g->gpm_error[id] = OK;
        return;
    }
    if (sscanf(rest, "%63s %lf%n", word, &value, &at) == 2 && at)
        for (size_t k = 0; k < sizeof KEYS / sizeof *KEYS; k++)
            if (!strcmp(KEYS[k].name, word)) { *(double *)((char *)g + KEYS[k].offset) = value; return; }
    refuse(line);
}

static void statement(const char *line) {
    char which[16];
    int at = 0;
    if (sscanf(line, "gpus %d", &gpu_count) == 1 && gpu_count >= 0 && gpu_count <= MAX_GPUS) return;
    if (sscanf(line, "driver %79s", driver) == 1 || sscanf(line, "init_error %d", &init_error) == 1) return;
    if (sscanf(line, "init_delay %d", &init_delay_ms) == 1 || sscanf(line, "count_error %d", &count_error) == 1) return;
    if (sscanf(line, "gpu %15s %n", which, &at) != 1 || !at) refuse(line);
    if (!strcmp(which, "*")) {
        for (int i = 0; i < gpu_count; i++) set_gpu(&gpus[i], line + at, line);
        return;
    }
    int index = atoi(which);
    if (index < 0 || index >= gpu_count) refuse(line);
    set_gpu(&gpus[index], line + at, line);
}

static void load(void) {
    static struct stat seen;
    const char *path = getenv("FAKE_NVML_SCRIPT");
    struct stat now;
    if (!path || stat(path, &now)) refuse(path ? path : "FAKE_NVML_SCRIPT is not set");
    if (now.st_ino == seen.st_ino && now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) refuse(path);
    char line[LINE];
    reset();
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "#\n")] = 0;
        if (line[strspn(line, " \t")]) statement(line + strspn(line, " \t"));
    }
    fclose(file);
    seen = now;
}

/* --- the way into every call --------------------------------------------------------------------------------------- */

static void pause_ms(int ms) {
    struct timespec span = { ms / 1000, ms % 1000 * 1000000L };
    if (ms > 0) nanosleep(&span, NULL);
}

/* What the script has in store for `call` on this GPU, before the call does its work. */
static int enter(Gpu *g, const char *call) {
    int any = OK, own = OK;
    load();
    if (g < gpus || g >= gpus + gpu_count) return INVALID_ARGUMENT;
    for (int i = 0; i < g->fault_count; i++) {
        Fault *f = &g->faults[i];
        if (!strcmp(f->call, call)) pause_ms(f->delay_ms), own = f->code;
        if (!strcmp(f->call, "*")) pause_ms(f->delay_ms), any = f->code;
    }
    if (g->lost) return GPU_IS_LOST;
    return own ? own : strcmp(call, "nvmlDeviceGetHandleByIndex") ? any : OK;
}

#define ENTER(g) do { int code_ = enter((g), __func__); if (code_) return code_; } while (0)
#define ENTER_AS(g, call) do { int code_ = enter((g), (call)); if (code_) return code_; } while (0)

static int text(char *to, unsigned size, const char *from) {
    if (strlen(from) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

static uint64_t u64(double value) { return value >= 18446744073709551615. ? UINT64_MAX : (uint64_t)value; }

/* --- the library ----------------------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) { (void)flags; load(); pause_ms(init_delay_ms); return init_error; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "fake error"; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { load(); return text(version, size, driver); }

int nvmlDeviceGetCount_v2(unsigned *count) { load(); *count = (unsigned)gpu_count; return count_error; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **device) {
    load();
    if (index >= (unsigned)gpu_count) return INVALID_ARGUMENT;
    ENTER_AS(&gpus[index], "nvmlDeviceGetHandleByIndex");
    *device = &gpus[index];
    return OK;
}

int nvmlDeviceGetName(Gpu *g, char *name, unsigned size) { ENTER(g); return text(name, size, g->name); }
int nvmlDeviceGetUUID(Gpu *g, char *uuid, unsigned size) { ENTER(g); return text(uuid, size, g->uuid); }

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;

int nvmlDeviceGetMemoryInfo(Gpu *g, Memory *m) {
    ENTER(g);
    m->total = u64(g->memory_total_bytes);
    m->used = u64(g->memory_used_bytes + g->memory_reserved_bytes); /* version 1 counts the driver's reserve as used */
    m->free = m->total - m->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(Gpu *g, MemoryV2 *m) {
    ENTER(g);
    if (m->version != (sizeof(MemoryV2) | 2u << 24)) return VERSION_MISMATCH;
    m->total = u64(g->memory_total_bytes);
    m->reserved = u64(g->memory_reserved_bytes);
    m->used = u64(g->memory_used_bytes);
    m->free = m->total - m->used - m->reserved;
    return OK;
}

int nvmlDeviceGetUtilizationRates(Gpu *g, struct { unsigned gpu, memory; } *rates) {
    ENTER(g);
    rates->gpu = (unsigned)g->utilization_pct, rates->memory = (unsigned)g->memory_utilization_pct;
    return OK;
}

int nvmlDeviceGetPowerUsage(Gpu *g, unsigned *mw) { ENTER(g); *mw = (unsigned)g->power_mw; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(Gpu *g, unsigned *mw) { ENTER(g); *mw = (unsigned)g->power_limit_mw; return OK; }
int nvmlDeviceGetTotalEnergyConsumption(Gpu *g, unsigned long long *mj) { ENTER(g); *mj = u64(g->energy_mj); return OK; }

int nvmlDeviceGetTemperature(Gpu *g, int sensor, unsigned *celsius) {
    ENTER(g);
    if (sensor != 0) return INVALID_ARGUMENT;
    *celsius = (unsigned)g->temperature_c;
    return OK;
}

int nvmlDeviceGetTemperatureV(Gpu *g, struct { unsigned version; int sensor; int celsius; } *t) {
    ENTER(g);
    if (t->version != (12 | 1u << 24)) return VERSION_MISMATCH;
    if (t->sensor != 0) return INVALID_ARGUMENT;
    t->celsius = (int)g->temperature_c;
    return OK;
}

int nvmlDeviceGetClockInfo(Gpu *g, int domain, unsigned *mhz) {
    ENTER(g);
    if (domain != 1 && domain != 2) return INVALID_ARGUMENT;
    *mhz = (unsigned)(domain == 1 ? g->sm_clock_mhz : g->memory_clock_mhz);
    return OK;
}

int nvmlDeviceGetPcieThroughput(Gpu *g, int counter, unsigned *kb) {
    ENTER(g);
    if (counter != 0 && counter != 1) return INVALID_ARGUMENT;
    *kb = (unsigned)(counter == 0 ? g->pcie_tx_kb : g->pcie_rx_kb);
    return OK;
}

int nvmlDeviceGetMaxPcieLinkGeneration(Gpu *g, unsigned *gen) { ENTER(g); *gen = (unsigned)g->pcie_gen; return OK; }
int nvmlDeviceGetMaxPcieLinkWidth(Gpu *g, unsigned *width) { ENTER(g); *width = (unsigned)g->pcie_width; return OK; }

int nvmlDeviceGetNvLinkState(Gpu *g, unsigned link, unsigned *active) {
    ENTER(g);
    if (link >= 18) return INVALID_ARGUMENT;
    *active = link < (unsigned)g->nvlinks;
    return OK;
}

int nvmlDeviceGetMigMode(Gpu *g, unsigned *current, unsigned *pending) {
    ENTER(g);
    *current = *pending = (unsigned)g->mig;
    return OK;
}

/* --- GPM --------------------------------------------------------------------------------------------------------------- */

int nvmlGpmQueryDeviceSupport(Gpu *g, struct { unsigned version, supported; } *support) {
    ENTER(g);
    if (support->version != 1) return VERSION_MISMATCH;
    support->supported = (unsigned)g->gpm_support;
    return OK;
}

int nvmlGpmSampleAlloc(GpmSample **sample) { *sample = calloc(1, sizeof **sample); return OK; }
int nvmlGpmSampleFree(GpmSample *sample) { free(sample); return OK; }

int nvmlGpmSampleGet(Gpu *g, GpmSample *sample) {
    ENTER(g);
    if (!g->gpm_support) return NOT_SUPPORTED;
    sample->gpu = g;
    return OK;
}

int nvmlGpmMetricsGet(GpmMetricsGet *query) {
    if (query->version != 1) return VERSION_MISMATCH;
    if (query->first == query->second || !query->first->gpu || query->first->gpu != query->second->gpu) return INVALID_ARGUMENT;
    Gpu *g = query->first->gpu;
    ENTER(g);
    for (unsigned i = 0; i < query->count; i++) {
        GpmMetric *metric = &query->metrics[i];
        metric->result = metric->id < MAX_GPM ? g->gpm_error[metric->id] : NOT_SUPPORTED;
        metric->value = metric->result ? 0 : g->gpm[metric->id];
    }
    return OK;
}
