/* A fake NVIDIA driver library: the NVML calls that gpuconsole makes, answered from a script.
 *
 * Build:  cc -shared -fPIC -o libnvidia-ml.so.1 fake_nvml.c      (build.py does it)
 * Use:    put its directory on LD_LIBRARY_PATH and name the script in FAKE_NVML_SCRIPT.
 *
 * The script is looked at before every call and read again when it has been replaced, so a test can change the machine
 * in mid-run; replace it by rename, never write it in place. One statement a line; '#' begins a comment; I is a GPU's
 * index or * for all of them; later lines win, so say "gpus" first.
 *
 *   gpus N                    how many GPUs there are (0 to 2048)
 *   path A B LEVEL            nvmlGpuTopologyLevel_t between two GPUs (unless said: 10)
 *   driver VERSION            what nvmlSystemGetDriverVersion says; the CUDA version is that of its branch
 *   init_error CODE           nvmlInit fails with this nvmlReturn_t
 *   init_delay MS             nvmlInit takes this long
 *   count_error CODE          nvmlDeviceGetCount fails with this nvmlReturn_t
 *   events_error CODE         nvmlEventSetWait fails with this nvmlReturn_t
 *   gpu I name TEXT           the rest of the line; \xNN is a byte
 *   gpu I uuid TEXT
 *   gpu I gpm METRIC VALUE    what the GPM metric NVML_GPM_METRIC_* METRIC reads (percent or MiB/s)
 *   gpu I gpm_error METRIC CODE   that metric alone has this nvmlReturn
 *   gpu I gpm_refused METRIC CODE a call that asks for that metric fails as a whole with this nvmlReturn
 *   gpu I error CALL CODE     CALL on this GPU fails with CODE (0: works again); CALL * is every call but the handle's
 *   gpu I delay CALL MS       CALL on this GPU takes this long
 *   gpu I field ID VALUE      what field NVML_FI_* ID holds; field_per_s ID RATE: it grows by RATE a second (by its own timestamp)
 *   gpu I field_error ID CODE that field alone has this nvmlReturn
 *   gpu I field_32bit ID 1    that field is an unsigned int, which wraps
 *   gpu I link_field LINK ID VALUE, link_field_error ID CODE    the same for a field of one NVLink (by scopeId)
 *   gpu I process PID KIND BYTES PERCENT    a process with its memory and SM share; KIND is compute or graphics
 *   gpu I record_bytes N      the driver writes records of processes of 16 or 32 bytes, where the binding reads 24
 *   gpu I mig_slice INSTANCE TOTAL USED     a MIG slice; mig_gpm INSTANCE METRIC VALUE: what GPM says of it
 *   gpu I xid CODE, gpu I xid_serial N      each new N above 0 raises the event XID once
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
    if (g && g->whole) g = g->whole; /* of a MIG slice's handle */
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
    if (g->whole) {
        m->total = u64(g->slice->memory_total_bytes), m->used = u64(g->slice->memory_used_bytes), m->free = m->total - m->used;
        return OK;
    }
    m->total = u64(g->memory_total_bytes);
    m->used = u64(g->memory_used_bytes + g->memory_reserved_bytes); /* version 1 counts the driver's reserve as used */
    m->free = m->total - m->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(Gpu *g, MemoryV2 *m) {
    ENTER(g);
    if (m->version != (sizeof(MemoryV2) | 2u << 24)) return VERSION_MISMATCH;
    if (g->whole) {
        m->total = u64(g->slice->memory_total_bytes), m->used = u64(g->slice->memory_used_bytes), m->reserved = 0, m->free = m->total - m->used;
        return OK;
    }
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

int nvmlDeviceGetEncoderUtilization(Gpu *g, unsigned *pct, unsigned *us) { ENTER(g); *pct = (unsigned)g->encoder_pct, *us = 166666; return OK; }
int nvmlDeviceGetDecoderUtilization(Gpu *g, unsigned *pct, unsigned *us) { ENTER(g); *pct = (unsigned)g->decoder_pct, *us = 166666; return OK; }
int nvmlDeviceGetJpgUtilization(Gpu *g, unsigned *pct, unsigned *us) { ENTER(g); *pct = (unsigned)g->jpeg_pct, *us = 166666; return OK; }
int nvmlDeviceGetOfaUtilization(Gpu *g, unsigned *pct, unsigned *us) { ENTER(g); *pct = (unsigned)g->ofa_pct, *us = 166666; return OK; }

typedef struct { unsigned long long total, free, used; } Bar1;

int nvmlDeviceGetBAR1MemoryInfo(Gpu *g, Bar1 *bar) {
    ENTER(g);
    bar->total = u64(g->bar1_total_bytes), bar->used = u64(g->bar1_used_bytes), bar->free = bar->total - bar->used;
    return OK;
}

// As sold, the limit of most boards is the highest one.
int nvmlDeviceGetPowerManagementDefaultLimit(Gpu *g, unsigned *mw) {
    ENTER(g);
    *mw = (unsigned)(g->power_limit_default_mw ? g->power_limit_default_mw : g->power_limit_max_mw);
    return OK;
}

int nvmlDeviceGetPowerManagementLimitConstraints(Gpu *g, unsigned *least, unsigned *most) {
    ENTER(g);
    *least = 200000, *most = (unsigned)g->power_limit_max_mw;
    return OK;
}

int nvmlDeviceGetTemperatureThreshold(Gpu *g, int kind, unsigned *celsius) {
    ENTER(g);
    if (kind != 1) return NOT_SUPPORTED;
    *celsius = (unsigned)g->slowdown_c;
    return OK;
}

int nvmlDeviceGetPerformanceState(Gpu *g, unsigned *state) { ENTER(g); *state = (unsigned)g->performance_state; return OK; }
typedef struct { unsigned version; int margin; } MarginV1;
int nvmlDeviceGetMarginTemperature(Gpu *g, MarginV1 *m) {
    ENTER(g);
    if (m->version != (sizeof(MarginV1) | 1u << 24)) return VERSION_MISMATCH;
    if (!g->margin_c) return NOT_SUPPORTED;
    m->margin = (int)g->margin_c;
    return OK;
}

int nvmlDeviceGetFanSpeed(Gpu *g, unsigned *pct) { ENTER(g); *pct = (unsigned)g->fan_pct; return OK; }

int nvmlDeviceGetMaxClockInfo(Gpu *g, int domain, unsigned *mhz) {
    ENTER(g);
    if (domain != 1 && domain != 2) return INVALID_ARGUMENT;
    *mhz = (unsigned)(domain == 1 ? g->sm_clock_max_mhz : g->memory_clock_max_mhz);
    return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(Gpu *g, unsigned long long *bits) { ENTER(g); *bits = u64(g->clocks_reasons); return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *g, unsigned long long *bits) { ENTER(g); *bits = u64(g->clocks_reasons); return OK; }
int nvmlDeviceGetCurrPcieLinkGeneration(Gpu *g, unsigned *gen) { ENTER(g); *gen = (unsigned)g->pcie_gen_now; return OK; }
int nvmlDeviceGetCurrPcieLinkWidth(Gpu *g, unsigned *width) { ENTER(g); *width = (unsigned)g->pcie_width_now; return OK; }
int nvmlDeviceGetPcieReplayCounter(Gpu *g, unsigned *count) { ENTER(g); *count = (unsigned)g->pcie_replays; return OK; }

/* --- facts --------------------------------------------------------------------------------------------------------------- */


/* The CUDA version that NVIDIA has shipped with the branch of the script's driver, or with the newest older one. */
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    static const struct { int branch, cuda; } SHIPPED[] = {
        { 580, 13000 }, { 575, 12090 }, { 570, 12080 }, { 560, 12060 }, { 550, 12040 }, { 535, 12020 }, { 525, 12000 }, { 470, 11040 }, { 0, 11000 },
    };
    int i = 0;
    load();
    while (atoi(driver) < SHIPPED[i].branch) i++;
    *version = SHIPPED[i].cuda;
    return OK;
}
int nvmlDeviceGetArchitecture(Gpu *g, unsigned *arch) { ENTER(g); *arch = (unsigned)g->architecture; return OK; }
int nvmlDeviceGetPersistenceMode(Gpu *g, unsigned *mode) { ENTER(g); *mode = (unsigned)g->persistence; return OK; }
int nvmlDeviceGetComputeMode(Gpu *g, unsigned *mode) { ENTER(g); *mode = 0; return OK; }
int nvmlDeviceGetEccMode(Gpu *g, unsigned *now, unsigned *next) { ENTER(g); *now = (unsigned)g->ecc, *next = (unsigned)(g->ecc_pending < 0 ? g->ecc : g->ecc_pending); return OK; }

int nvmlDeviceGetCudaComputeCapability(Gpu *g, int *major, int *minor) {
    ENTER(g);
    *major = (int)g->capability_major, *minor = (int)g->capability_minor;
    return OK;
}

int nvmlDeviceGetCpuAffinity(Gpu *g, unsigned words, unsigned long *mask) {
    ENTER(g);
    memset(mask, 0, words * sizeof *mask);
    mask[0] = (unsigned long)g->affinity_low;
    return OK;
}

int nvmlDeviceGetMemoryAffinity(Gpu *g, unsigned words, unsigned long *mask, int scope) {
    (void)scope;
    ENTER(g);
    if (g->numa_node < 0) return NOT_SUPPORTED; /* the firmware names no node */
    memset(mask, 0, words * sizeof *mask);
    mask[0] = 1ul << (int)g->numa_node;
    return OK;
}

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;

int nvmlDeviceGetPciInfo_v3(Gpu *g, PciInfo *pci) {
    ENTER(g);
    int index = (int)(g - gpus);
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned)(index & 255), pci->domain = (unsigned)(index >> 8);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:00.0", pci->domain, pci->bus);
    return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(Gpu *a, Gpu *b, int *level) {
    ENTER(a);
    *level = 10;
    for (int k = 0; k < path_count; k++)
        if ((a == &gpus[paths[k].a] && b == &gpus[paths[k].b]) || (b == &gpus[paths[k].a] && a == &gpus[paths[k].b])) *level = paths[k].level;
    return OK;
}

/* Every link goes to a switch, as on an HGX board. */
int nvmlDeviceGetNvLinkRemoteDeviceType(Gpu *g, unsigned link, int *kind) {
    ENTER(g);
    if (link >= MAX_LINKS) return INVALID_ARGUMENT;
    *kind = 2;
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *g, unsigned link, PciInfo *pci) {
    ENTER(g);
    if (link >= MAX_LINKS) return INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:F%X:00.0", link % 4);
    return OK;
}

/* --- field values ---------------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned id, scope;
    long long timestamp_us, latency_us;
    int type, result; /* type 1: unsigned int, 3: unsigned long long */
    union { double d; unsigned ui; unsigned long long ull; } value;
} FieldValue;

int nvmlDeviceGetFieldValues(Gpu *g, int count, FieldValue *values) {
    struct timespec now;
    ENTER(g);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        FieldValue *v = &values[i];
        int of_link = link_field((int)v->id);
        const Field *f = v->id >= MAX_FIELD ? NULL : of_link < 0 ? &g->fields[v->id] : v->scope < MAX_LINKS ? &g->link_fields[v->scope][of_link] : NULL;
        v->timestamp_us = now.tv_sec * 1000000ll + now.tv_nsec / 1000;
        v->latency_us = 5;
        if (v->id == 165 && !f->error) { /* the state of a link */
            v->result = v->scope < MAX_LINKS ? 0 : INVALID_ARGUMENT;
            v->type = 1, v->value.ull = 0, v->value.ui = v->scope < (unsigned)g->nvlinks;
            continue;
        }
        v->result = f ? f->error : INVALID_ARGUMENT;
        if (v->result) continue;
        double value = f->value + f->per_s * ((double)(v->timestamp_us % 1000000000000ll) * 1e-6);
        v->type = v->id == 82 || v->id == 186 || f->is_32bit ? 1 : 3;
        v->value.ull = 0;
        if (v->type == 1) v->value.ui = (unsigned)u64(value);
        else v->value.ull = u64(value);
    }
    return OK;
}

/* --- processes ------------------------------------------------------------------------------------------------------------- */

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } ProcessInfo;

static int running(Gpu *g, int kind, unsigned *count, ProcessInfo *found) {
    unsigned n = 0, room = *count;
    if (g->whole) g = g->whole;
    for (int k = 0; k < g->task_count; k++) n += g->tasks[k].kind == kind;
    *count = n;
    if (n > room || (n && !found)) return INSUFFICIENT_SIZE;
    n = 0;
    for (int k = 0; k < g->task_count; k++)
        if (g->tasks[k].kind == kind) { /* a driver that writes other records: 16 bytes (pid, memory), or 32 (one more field) */
            struct { ProcessInfo info; unsigned long long protected_bytes; } record = { { g->tasks[k].pid, u64(g->tasks[k].memory_bytes), 0xFFFFFFFF, 0xFFFFFFFF }, 20276 };
            memcpy((char *)found + n++ * (size_t)g->record_bytes, &record, (size_t)g->record_bytes);
        }
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *g, unsigned *count, ProcessInfo *found) { ENTER(g); return running(g, 0, count, found); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu *g, unsigned *count, ProcessInfo *found) { ENTER(g); return running(g, 1, count, found); }

typedef struct { unsigned pid; unsigned long long timestamp; unsigned sm, memory, encoder, decoder; } ProcessSample;

int nvmlDeviceGetProcessUtilization(Gpu *g, ProcessSample *samples, unsigned *count, unsigned long long since) {
    struct timespec now;
    unsigned n = 0, room = *count;
    (void)since;
    ENTER(g);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int k = 0; k < g->task_count; k++) n += g->tasks[k].sm_pct >= 0;
    *count = n;
    if (!n) return NOT_FOUND;
    if (n > room || !samples) return INSUFFICIENT_SIZE;
    n = 0;
    for (int k = 0; k < g->task_count; k++)
        if (g->tasks[k].sm_pct >= 0)
            samples[n++] = (ProcessSample){ g->tasks[k].pid, (unsigned long long)now.tv_sec * 1000000ull, (unsigned)g->tasks[k].sm_pct, (unsigned)g->tasks[k].memory_pct, 0, 0 };
    return OK;
}

/* --- events ------------------------------------------------------------------------------------------------------------------ */

typedef struct { Gpu *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } EventData;
static char the_event_set;
static unsigned char registered[MAX_GPUS];

int nvmlEventSetCreate(void **set) { memset(registered, 0, sizeof registered); *set = &the_event_set; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }

int nvmlDeviceRegisterEvents(Gpu *g, unsigned long long types, void *set) {
    (void)set;
    ENTER(g);
    if (!(types & 8)) return INVALID_ARGUMENT; /* nvmlEventTypeXidCriticalError */
    registered[g - gpus] = 1;
    return OK;
}

int nvmlEventSetWait_v2(void *set, EventData *data, unsigned timeout_ms) {
    (void)set, (void)timeout_ms;
    load();
    if (events_error) return events_error;
    for (int i = 0; i < gpu_count; i++) {
        if (!registered[i] || xid_seen[i] == (unsigned)gpus[i].xid_serial) continue;
        xid_seen[i] = (unsigned)gpus[i].xid_serial;
        *data = (EventData){ &gpus[i], 8, u64(gpus[i].xid), 0xFFFFFFFF, 0xFFFFFFFF };
        return OK;
    }
    return TIMEOUT;
}

/* --- MIG ------------------------------------------------------------------------------------------------------------------------ */

static Gpu slice_handles[64][MAX_SLICES]; /* for the first 64 GPUs */

int nvmlDeviceGetMaxMigDeviceCount(Gpu *g, unsigned *count) { ENTER(g); *count = MAX_SLICES; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *g, unsigned index, Gpu **slice) {
    ENTER(g);
    if (index >= (unsigned)g->slice_count || g - gpus >= 64) return NOT_FOUND;
    Gpu *handle = &slice_handles[g - gpus][index];
    handle->whole = g, handle->slice = &g->slices[index];
    snprintf(handle->name, sizeof handle->name, "%.80s MIG 1g.18gb", g->name);
    snprintf(handle->uuid, sizeof handle->uuid, "MIG-00000000-0000-0000-%04d-%012d", (int)(g - gpus), (int)index);
    *slice = handle;
    return OK;
}

int nvmlDeviceGetGpuInstanceId(Gpu *g, unsigned *id) {
    ENTER(g);
    if (!g->whole) return NOT_SUPPORTED;
    *id = g->slice->instance;
    return OK;
}

/* --- GPM --------------------------------------------------------------------------------------------------------------- */

typedef struct { Gpu *gpu; int slice; double taken_s; } GpmSample; /* slice -1: the whole GPU */
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

static double clock_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + now.tv_nsec * 1e-9;
}

int nvmlGpmSampleGet(Gpu *g, GpmSample *sample) {
    ENTER(g);
    if (!g->gpm_support) return NOT_SUPPORTED;
    if (g->mig) return NOT_SUPPORTED; /* then only its slices have counters */
    sample->gpu = g, sample->slice = -1, sample->taken_s = clock_s();
    return OK;
}

int nvmlGpmMigSampleGet(Gpu *g, unsigned instance, GpmSample *sample) {
    ENTER(g);
    for (int k = 0; k < g->slice_count; k++)
        if (g->slices[k].instance == instance) {
            sample->gpu = g, sample->slice = k, sample->taken_s = clock_s();
            return OK;
        }
    return INVALID_ARGUMENT;
}

int nvmlGpmMetricsGet(GpmMetricsGet *query) {
    if (query->version != 1) return VERSION_MISMATCH;
    if (query->first == query->second || !query->first->gpu || query->first->gpu != query->second->gpu) return INVALID_ARGUMENT;
    Gpu *g = query->first->gpu;
    ENTER(g);
    for (unsigned i = 0; i < query->count; i++)
        if (query->metrics[i].id < MAX_GPM && g->gpm_refused[query->metrics[i].id]) return g->gpm_refused[query->metrics[i].id];
    int blank = query->second->taken_s - query->first->taken_s < 0.1; /* the counters are refreshed every 100 ms */
    for (unsigned i = 0; i < query->count; i++) {
        GpmMetric *metric = &query->metrics[i];
        metric->result = metric->id < MAX_GPM ? g->gpm_error[metric->id] : NOT_SUPPORTED;
        metric->value = metric->result ? 0 : query->first->slice < 0 ? g->gpm[metric->id] : g->slices[query->first->slice].gpm[metric->id];
        if (blank) metric->value = metric->id < 20 ? 0.0 / 0.0 : 0;
    }
    return OK;
}
