/* The fake machine: what the script says of it. The script's format is described in fake_nvml.c. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { MAX_GPUS = 2048, MAX_FAULTS = 48, MAX_GPM = 128, MAX_FIELD = 320, MAX_LINKS = 18, FIRST_LINK_FIELD = 161, FIRST_LINK_FIELD_5 = 213, LINK_FIELDS = 6, MAX_PROCESSES = 16, MAX_SLICES = 7, LINE = 512 };
enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25 };

typedef struct { char call[64]; int code; int delay_ms; } Fault;
typedef struct { double value, per_s; int error, is_32bit; } Field;
typedef struct { unsigned pid; int kind; double memory_bytes, sm_pct, memory_pct; } Task; /* kind: 0 compute, 1 graphics */
typedef struct { unsigned instance; double memory_total_bytes, memory_used_bytes; double gpm[MAX_GPM]; } Slice;
typedef struct Gpu {
    struct Gpu *whole; /* of a MIG slice's handle: the GPU that it is a slice of; NULL for a whole GPU */
    Slice *slice;
    char name[96], uuid[96];
    double lost, power_mw, power_limit_mw, energy_mj, temperature_c, sm_clock_mhz, memory_clock_mhz;
    double utilization_pct, memory_utilization_pct, memory_total_bytes, memory_used_bytes, memory_reserved_bytes;
    double pcie_rx_kb, pcie_tx_kb, pcie_gen, pcie_width, nvlinks, gpm_support, mig;
    double encoder_pct, decoder_pct, jpeg_pct, ofa_pct, bar1_total_bytes, bar1_used_bytes, power_limit_max_mw, power_limit_default_mw, slowdown_c, margin_c, fan_pct, performance_state; /* margin_c 0: not supported */
    double sm_clock_max_mhz, memory_clock_max_mhz, clocks_reasons, pcie_gen_now, pcie_width_now, pcie_replays;
    double xid, xid_serial, architecture, capability_major, capability_minor, persistence, ecc, ecc_pending, numa_node, affinity_low, record_bytes; /* ecc_pending -1: as ecc */
    double gpm[MAX_GPM];
    int gpm_error[MAX_GPM], gpm_refused[MAX_GPM];
    Field fields[MAX_FIELD], link_fields[MAX_LINKS][LINK_FIELDS];
    Task tasks[MAX_PROCESSES];
    int task_count;
    Slice slices[MAX_SLICES];
    int slice_count;
    Fault faults[MAX_FAULTS];
    int fault_count;
} Gpu;

#define KEY(name) { #name, offsetof(Gpu, name) }
static const struct { const char *name; size_t offset; } KEYS[] = {
    KEY(lost), KEY(power_mw), KEY(power_limit_mw), KEY(energy_mj), KEY(temperature_c), KEY(sm_clock_mhz),
    KEY(memory_clock_mhz), KEY(utilization_pct), KEY(memory_utilization_pct), KEY(memory_total_bytes),
    KEY(memory_used_bytes), KEY(memory_reserved_bytes), KEY(pcie_rx_kb), KEY(pcie_tx_kb), KEY(pcie_gen),
    KEY(pcie_width), KEY(nvlinks), KEY(gpm_support), KEY(mig), KEY(encoder_pct), KEY(decoder_pct), KEY(jpeg_pct), KEY(ofa_pct),
    KEY(bar1_total_bytes), KEY(bar1_used_bytes), KEY(power_limit_max_mw), KEY(power_limit_default_mw), KEY(slowdown_c), KEY(margin_c), KEY(fan_pct), KEY(performance_state), KEY(sm_clock_max_mhz),
    KEY(memory_clock_max_mhz), KEY(clocks_reasons), KEY(pcie_gen_now), KEY(pcie_width_now), KEY(pcie_replays), KEY(xid), KEY(xid_serial),
    KEY(architecture), KEY(capability_major), KEY(capability_minor), KEY(persistence), KEY(ecc), KEY(ecc_pending), KEY(numa_node), KEY(affinity_low), KEY(record_bytes),
};
static const int GPM_KNOWN[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 20, 21, 60, 61, 100, 101 };
static const int FIELDS_KNOWN[] = { 3, 4, 5, 6, 74, 75, 76, 77, 79, 82, 138, 139, 142, 143, 144, 145, 165, 186, 197, 198, 251, 252, 253, 269, 270, 271 };

static Gpu *gpus; /* MAX_GPUS of them: an untouched page costs nothing */
static int gpu_count, init_error, init_delay_ms, count_error, events_error;
static struct { int a, b, level; } paths[64];
static int path_count;
static unsigned xid_seen[MAX_GPUS];
static char driver[80];

/* --- the script ------------------------------------------------------------------------------------------------ */

static void refuse(const char *line) {
    fprintf(stderr, "fake_nvml: cannot understand: %s\n", line);
    _Exit(70);
}

static void reset(void) {
    gpu_count = 1;
    init_error = init_delay_ms = count_error = events_error = 0;
    path_count = 0;
    strcpy(driver, "580.159.03");
    if (!gpus) gpus = calloc(MAX_GPUS, sizeof *gpus);
}

/* What a GPU is unless the script says otherwise. Called by "gpus N" for those N. */
static void reset_gpus(void) {
    memset(gpus, 0, (size_t)gpu_count * sizeof *gpus);
    for (int i = 0; i < gpu_count; i++) {
        Gpu *g = &gpus[i];
        strcpy(g->name, "NVIDIA H200");
        snprintf(g->uuid, sizeof g->uuid, "GPU-00000000-0000-0000-0000-%012d", i);
        g->power_mw = 350000, g->power_limit_mw = 700000, g->energy_mj = 5000000, g->temperature_c = 61;
        g->sm_clock_mhz = 1980, g->memory_clock_mhz = 3201, g->utilization_pct = 100, g->memory_utilization_pct = 40;
        g->memory_total_bytes = 150754820096., g->memory_used_bytes = 60e9, g->memory_reserved_bytes = 600e6;
        g->pcie_rx_kb = 12000000, g->pcie_tx_kb = 300000, g->pcie_gen = 5, g->pcie_width = 16, g->nvlinks = 18;
        g->gpm_support = 1;
        g->bar1_total_bytes = 274877906944., g->bar1_used_bytes = 1e6, g->power_limit_max_mw = 700000, g->slowdown_c = 90;
        g->sm_clock_max_mhz = 1980, g->memory_clock_max_mhz = 3201, g->pcie_gen_now = 5, g->pcie_width_now = 16;
        g->architecture = 9, g->capability_major = 9, g->persistence = 1, g->ecc = 1, g->ecc_pending = -1, g->affinity_low = 3, g->fan_pct = 30, g->record_bytes = 24;
        for (int m = 0; m < MAX_GPM; m++) g->gpm_error[m] = m >= 62 && m < 98 ? OK : NOT_SUPPORTED;
        for (size_t k = 0; k < sizeof GPM_KNOWN / sizeof *GPM_KNOWN; k++) g->gpm_error[GPM_KNOWN[k]] = OK;
        for (int f = 0; f < MAX_FIELD; f++) g->fields[f].error = NOT_SUPPORTED;
        for (size_t k = 0; k < sizeof FIELDS_KNOWN / sizeof *FIELDS_KNOWN; k++) g->fields[FIELDS_KNOWN[k]].error = OK;
        g->fields[170] = (Field){ 1, 0, OK, 0 }; /* a chip-to-chip link, so that it has every metric */
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

/* Which of a link's fields the field ID is: 161 to 163 (up to Hopper), 213 to 215 (from Blackwell on); -1: none. */
static int link_field(int id) {
    if (id >= FIRST_LINK_FIELD && id < FIRST_LINK_FIELD + LINK_FIELDS / 2) return id - FIRST_LINK_FIELD;
    if (id >= FIRST_LINK_FIELD_5 && id < FIRST_LINK_FIELD_5 + LINK_FIELDS / 2) return LINK_FIELDS / 2 + id - FIRST_LINK_FIELD_5;
    return -1;
}

static void set_gpu(Gpu *g, const char *rest, const char *line) {
    char word[64];
    int id, code, link, at = 0;
    double value, total, used;
    if (!strncmp(rest, "name ", 5)) { copy_text(g->name, sizeof g->name, rest + 5); return; }
    if (!strncmp(rest, "uuid ", 5)) { copy_text(g->uuid, sizeof g->uuid, rest + 5); return; }
    if (sscanf(rest, "error %63s %d", word, &code) == 2) { fault_of(g, word, line)->code = code; return; }
    if (sscanf(rest, "delay %63s %d", word, &code) == 2) { fault_of(g, word, line)->delay_ms = code; return; }
    if (sscanf(rest, "gpm_error %d %d", &id, &code) == 2 && id >= 0 && id < MAX_GPM) { g->gpm_error[id] = code; return; }
    if (sscanf(rest, "gpm_refused %d %d", &id, &code) == 2 && id >= 0 && id < MAX_GPM) { g->gpm_refused[id] = code; return; }
    if (sscanf(rest, "gpm %d %lf", &id, &value) == 2 && id >= 0 && id < MAX_GPM) {
        g->gpm[id] = value, g->gpm_error[id] = OK;
        return;
    }
    if (sscanf(rest, "field_error %d %d", &id, &code) == 2 && id >= 0 && id < MAX_FIELD) { g->fields[id].error = code; return; }
    if (sscanf(rest, "field_32bit %d %d", &id, &code) == 2 && id >= 0 && id < MAX_FIELD) { g->fields[id].is_32bit = code; return; }
    if (sscanf(rest, "field_per_s %d %lf", &id, &value) == 2 && id >= 0 && id < MAX_FIELD) { g->fields[id] = (Field){ 0, value, OK, 0 }; return; }
    if (sscanf(rest, "field %d %lf", &id, &value) == 2 && id >= 0 && id < MAX_FIELD) { g->fields[id] = (Field){ value, 0, OK, 0 }; return; }
    if (sscanf(rest, "link_field %d %d %lf", &link, &id, &value) == 3 && link >= 0 && link < MAX_LINKS && link_field(id) >= 0) {
        g->link_fields[link][link_field(id)] = (Field){ value, 0, OK, 0 };
        return;
    }
    if (sscanf(rest, "link_field_error %d %d", &id, &code) == 2 && link_field(id) >= 0) {
        for (link = 0; link < MAX_LINKS; link++) g->link_fields[link][link_field(id)].error = code;
        return;
    }
    total = 0;
    if (sscanf(rest, "process %d %63s %lf %lf %lf", &id, word, &used, &value, &total) >= 4 && g->task_count < MAX_PROCESSES) {
        g->tasks[g->task_count++] = (Task){ (unsigned)id, !strcmp(word, "graphics"), used, value, total };
        return;
    }
    if (sscanf(rest, "mig_slice %d %lf %lf", &id, &total, &used) == 3 && g->slice_count < MAX_SLICES) {
        g->slices[g->slice_count++] = (Slice){ .instance = (unsigned)id, .memory_total_bytes = total, .memory_used_bytes = used };
        return;
    }
    if (sscanf(rest, "mig_gpm %d %d %lf", &link, &id, &value) == 3 && id >= 0 && id < MAX_GPM) {
        for (int k = 0; k < g->slice_count; k++)
            if ((int)g->slices[k].instance == link) { g->slices[k].gpm[id] = value; return; }
    }
    if (sscanf(rest, "%63s %lf%n", word, &value, &at) == 2 && at)
        for (size_t k = 0; k < sizeof KEYS / sizeof *KEYS; k++)
            if (!strcmp(KEYS[k].name, word)) { *(double *)((char *)g + KEYS[k].offset) = value; return; }
    refuse(line);
}

static void statement(const char *line) {
    char which[16];
    int at = 0;
    if (sscanf(line, "gpus %d", &gpu_count) == 1 && gpu_count >= 0 && gpu_count <= MAX_GPUS) { reset_gpus(); return; }
    if (path_count < 64 && sscanf(line, "path %d %d %d", &paths[path_count].a, &paths[path_count].b, &paths[path_count].level) == 3) {
        path_count++;
        return;
    }
    if (sscanf(line, "driver %79s", driver) == 1 || sscanf(line, "init_error %d", &init_error) == 1) return;
    if (sscanf(line, "events_error %d", &events_error) == 1) return;
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

static void load_now(void) {
    static struct stat seen;
    const char *path = getenv("FAKE_NVML_SCRIPT");
    struct stat now;
    if (!path || stat(path, &now)) refuse(path ? path : "FAKE_NVML_SCRIPT is not set");
    if (now.st_ino == seen.st_ino && now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) refuse(path);
    char line[LINE];
    reset();
    reset_gpus();
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "#\n")] = 0;
        if (line[strspn(line, " \t")]) statement(line + strspn(line, " \t"));
    }
    fclose(file);
    seen = now;
}

/* Several threads call the library, and each call looks at the script. */
static void load(void) {
    static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&reading);
    load_now();
    pthread_mutex_unlock(&reading);
}
