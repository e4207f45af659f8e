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
#include "fake_machine.h"

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

typedef struct { unsigned gpu, memory; } Utilization;

int nvmlDeviceGetUtilizationRates(Gpu *g, Utilization *rates) {
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

typedef struct { unsigned version; int sensor, celsius; } TemperatureV1;

int nvmlDeviceGetTemperatureV(Gpu *g, TemperatureV1 *t) {
    ENTER(g);
    if (t->version != (sizeof(TemperatureV1) | 1u << 24)) return VERSION_MISMATCH;
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

typedef struct { Gpu *gpu; } GpmSample;
typedef struct { unsigned id; int result; double value; const char *short_name, *long_name, *unit; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmMetricsGet;
typedef struct { unsigned version, supported; } GpmSupport;

int nvmlGpmQueryDeviceSupport(Gpu *g, GpmSupport *support) {
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
