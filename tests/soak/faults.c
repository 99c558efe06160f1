/* Stands between a program and libc (LD_PRELOAD). Counts every call that changes what lies under one folder, and makes
 * one of them fail, or end the process there. The program asks for it through faults_arm() (ctypes), or the environment
 * says FAULTS_FULL=<file> FAULTS_UNDER=<folder>: while the file exists the disk is full. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOTHING, IO_ERROR, FULL, SHORT_WRITE, SHORT_THEN_FULL, END, END_IN_WRITE };
enum { FILES = 4096, PATH = 4096, NAME = 16, TRACE = 1 << 16 };

static char under[PATH];
static int kind, is_watched[FILES], full_fd = -1;
static long at, calls;
static char hit[NAME];   /* the call that failed; empty if none did */
static char seen[TRACE]; /* first letters of the calls so far */

void faults_arm(const char *folder, long number, int what) {
  snprintf(under, PATH, "%s", folder);
  at = number, kind = what, calls = 0, hit[0] = seen[0] = 0, full_fd = -1;
}
long faults_calls(void) { return calls; }
const char *faults_hit(void) { return hit; }
const char *faults_seen(void) { return seen; }

static int disk_is_full(void) {
  static const char *file;
  if (!file) file = getenv("FAULTS_FULL") ? getenv("FAULTS_FULL") : "";
  return *file && access(file, F_OK) == 0;
}

static int is_under(const char *path) {
  if (!under[0] && getenv("FAULTS_UNDER")) snprintf(under, PATH, "%s", getenv("FAULTS_UNDER"));
  size_t n = strlen(under);
  return n && path && strncmp(path, under, n) == 0 && (path[n] == '/' || path[n] == 0);
}

static int concerns(int folder, const char *path) {
  return path && path[0] == '/' ? is_under(path) : folder >= 0 && folder < FILES && is_watched[folder];
}

static void count(const char *name) {
  if (calls < TRACE - 1) seen[calls] = name[0], seen[calls + 1] = 0;
  calls++;
}

/* Counts a call; nonzero: it is to fail, errno is set. */
static int fails(const char *name, int needs_space) {
  if (needs_space && disk_is_full()) { errno = ENOSPC; return 1; }
  count(name);
  if (calls != at || (kind != IO_ERROR && kind != FULL && kind != END)) return 0;
  if (kind == END) _exit(86);
  snprintf(hit, NAME, "%s", name);
  errno = kind == IO_ERROR ? EIO : ENOSPC;
  return 1;
}

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *data, size_t n) {
  REAL(ssize_t, "write", int, const void *, size_t);
  if (fd < 0 || fd >= FILES || !is_watched[fd]) return real(fd, data, n);
  if (fd == full_fd) { errno = ENOSPC; return -1; }
  if (calls + 1 == at && n > 1 && (kind == SHORT_WRITE || kind == SHORT_THEN_FULL || kind == END_IN_WRITE)) {
    ssize_t half = real(fd, data, n / 2);
    if (kind == END_IN_WRITE) _exit(86);
    if (kind == SHORT_THEN_FULL) full_fd = fd;
    count("write");
    snprintf(hit, NAME, "write");
    return half;
  }
  return fails("write", 1) ? -1 : real(fd, data, n);
}

static int opened(int fd, int watched) {
  if (fd >= 0 && fd < FILES) is_watched[fd] = watched;
  return fd;
}
static int open_at(int folder, const char *path, int flags, mode_t mode) {
  REAL(int, "openat", int, const char *, int, ...);
  int watched = concerns(folder, path);
  if (watched && (flags & O_CREAT) && fails("open", 1)) return -1;
  return opened(real(folder, path, flags, mode), watched);
}
#define MODE(flags) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
int open(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return open_at(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) {
  MODE(flags) return open_at(folder, path, flags | O_LARGEFILE, mode);
}
int close(int fd) {
  REAL(int, "close", int);
  if (fd >= 0 && fd < FILES) is_watched[fd] = 0;
  if (fd == full_fd) full_fd = -1;
  return real(fd);
}
int fsync(int fd) {
  REAL(int, "fsync", int);
  return fd >= 0 && fd < FILES && is_watched[fd] && fails("fsync", 0) ? -1 : real(fd);
}
int mkdir(const char *path, mode_t mode) {
  REAL(int, "mkdir", const char *, mode_t);
  return is_under(path) && fails("mkdir", 1) ? -1 : real(path, mode);
}
int rename(const char *from, const char *to) {
  REAL(int, "rename", const char *, const char *);
  return is_under(to) && fails("rename", 0) ? -1 : real(from, to);
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
  REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
  return concerns(b, to) && fails("rename", 0) ? -1 : real(a, from, b, to, flags);
}
int symlink(const char *target, const char *path) {
  REAL(int, "symlink", const char *, const char *);
  return is_under(path) && fails("symlink", 1) ? -1 : real(target, path);
}
int unlink(const char *path) {
  REAL(int, "unlink", const char *);
  return is_under(path) && fails("unlink", 0) ? -1 : real(path);
}
int unlinkat(int folder, const char *path, int flags) {
  REAL(int, "unlinkat", int, const char *, int);
  return concerns(folder, path) && fails("unlink", 0) ? -1 : real(folder, path, flags);
}
int rmdir(const char *path) {
  REAL(int, "rmdir", const char *);
  return is_under(path) && fails("rmdir", 0) ? -1 : real(path);
}
int ftruncate64(int fd, off64_t length) {
  REAL(int, "ftruncate64", int, off64_t);
  return fd >= 0 && fd < FILES && is_watched[fd] && fails("truncate", 0) ? -1 : real(fd, length);
}
