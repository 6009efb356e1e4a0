/* Refuses the system calls that no builder and no build step needs (seccomp(2)). This filter restricts the builder
 * itself, which parses a tenant's files. Build steps also run under the stricter filter of apps. */
#define _GNU_SOURCE
#include "filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "mounts.h"

#if defined __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "no filter for this architecture"
#endif

static const int refused[] = {
    SYS_acct,
    SYS_add_key,
    SYS_bpf,
    SYS_clock_settime,
    SYS_delete_module,
    SYS_fanotify_init,
    SYS_finit_module,
    SYS_init_module,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_io_uring_setup,
    SYS_kcmp,
    SYS_kexec_file_load,
    SYS_kexec_load,
    SYS_migrate_pages,
    SYS_move_pages,
    SYS_open_by_handle_at,
    SYS_perf_event_open,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_ptrace,
    SYS_quotactl,
    SYS_reboot,
    SYS_request_key,
    SYS_settimeofday,
    SYS_swapoff,
    SYS_swapon,
    SYS_syslog,
    SYS_userfaultfd,
    SYS_vmsplice,
#ifdef SYS_quotactl_fd
    SYS_quotactl_fd,
#endif
#ifdef SYS_iopl
    SYS_ioperm,
    SYS_iopl,
    SYS_modify_ldt,
#endif
};

/* Mount, pid, IPC and UTS namespaces remain allowed, because runc makes them for each step. */
enum { REFUSED_NAMESPACES = CLONE_NEWUSER | CLONE_NEWCGROUP | CLONE_NEWNET };
enum { REFUSED_COUNT = sizeof refused / sizeof *refused, X32_BIT = 0x40000000 };

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(test, value, then, otherwise) BPF_JUMP(BPF_JMP | (test) | BPF_K, value, then, otherwise)
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, action)
#define ERROR(number) RETURN(SECCOMP_RET_ERRNO | (number))

void install_filter(void) {
    struct sock_filter code[REFUSED_COUNT * 2 + 32];
    unsigned short length = 0;
#define ADD(...) code[length++] = (struct sock_filter)__VA_ARGS__
    ADD(LOAD(arch));
    ADD(IF(BPF_JEQ, ARCHITECTURE, 1, 0));
    ADD(RETURN(SECCOMP_RET_KILL_PROCESS));
    ADD(LOAD(nr));
#ifdef __x86_64__
    ADD(IF(BPF_JGE, X32_BIT, 0, 1));
    ADD(ERROR(ENOSYS));
#endif
    for (int i = 0; i < REFUSED_COUNT; i++) {
        ADD(IF(BPF_JEQ, (unsigned)refused[i], 0, 1));
        ADD(ERROR(EPERM));
    }
    /* clone3's flags are in memory, which a filter cannot read. Libraries fall back to clone. */
    ADD(IF(BPF_JEQ, SYS_clone3, 0, 1));
    ADD(ERROR(ENOSYS));
    ADD(IF(BPF_JEQ, SYS_clone, 1, 0));
    ADD(IF(BPF_JEQ, SYS_unshare, 0, 3));
    ADD(LOAD(args[0]));
    ADD(IF(BPF_JSET, REFUSED_NAMESPACES, 0, 1));
    ADD(ERROR(EPERM));
    ADD(RETURN(SECCOMP_RET_ALLOW));
#undef ADD
    struct sock_fprog program = {.len = length, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("set", "no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) fail("set", "the system call filter");
}
