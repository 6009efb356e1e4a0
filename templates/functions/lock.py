"""From pip's report of what it installed, a lock: each package with its version and the hash of what was fetched.

With a hash for some and none for others pip would refuse them all, so it is all of them or none.
"""

import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    installed = json.load(file)["install"]

locked = []
for package in installed:
    metadata = package["metadata"]
    archive = package.get("download_info", {}).get("archive_info", {})
    locked.append((metadata["name"], metadata["version"], archive.get("hashes", {}).get("sha256")))

is_hashed = all(sha256 for _, _, sha256 in locked)
with open(sys.argv[2], "w", encoding="utf-8") as file:
    for name, version, sha256 in sorted(locked, key=lambda each: each[0].lower()):
        file.write(f"{name}=={version}{f' --hash=sha256:{sha256}' if is_hashed else ''}\n")
