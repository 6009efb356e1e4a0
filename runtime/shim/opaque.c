/*
 * kontor-shim opaque: overlay layers that hide the same files in every kind of mount.
 *
 *     kontor-shim opaque LAYER…
 *
 * An attribute marks a directory that hides files of lower layers. Layers of a user namespace, such as builds, use
 * `user.overlay.opaque`. Layers of the host use `trusted.overlay.opaque`. Each kind of mount reads its own attribute
 * alone (overlayfs.rst); a directory with either attribute gets the other too.
 */
#define _GNU_SOURCE
#include "opaque.h"

#include <errno.h>
#include <fts.h>
#include <stdbool.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "mounts.h"

static const char *const names[] = {"trusted.overlay.opaque", "user.overlay.opaque"};

static void mark(const char *path) {
    char value;
    bool has[2];
    for (int i = 0; i < 2; i++) has[i] = lgetxattr(path, names[i], &value, 1) == 1 && value == 'y';
    for (int i = 0; i < 2; i++)
        if (has[1 - i] && !has[i] && lsetxattr(path, names[i], "y", 1, 0)) fail("mark", path);
}

int opaque_main(int count, char **layers) {
    if (count < 1) return -1;
    for (int i = 0; i < count; i++) {
        enter_directory(layers[i]);
        char *roots[] = {".", NULL};
        FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_XDEV, NULL);
        if (!walk) fail("read", layers[i]);
        for (FTSENT *each; errno = 0, (each = fts_read(walk));) {
            if (each->fts_info == FTS_D) mark(each->fts_accpath);
            else if (each->fts_info == FTS_DNR || each->fts_info == FTS_ERR) {
                errno = each->fts_errno;
                fail("read", each->fts_path);
            }
        }
        if (errno) fail("read", layers[i]);
        fts_close(walk);
    }
    return 0;
}
