/* The fake machine: what the script says of it. The script's format is described in fake_nvml.c. */
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
