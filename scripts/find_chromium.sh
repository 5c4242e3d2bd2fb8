#!/bin/sh
# Makes sure that a Chromium is there for the browser tests: installs Debian's where that is allowed.
set -eu
for name in "${CHROMIUM:-chromium}" chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then
        exit 0
    fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing Chromium for the browser tests ..."
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
else
    echo "The browser tests need Chromium. Install it (Debian: sudo apt-get install chromium)" \
         "or name one: CHROMIUM=/path/to/chromium make test" >&2
    exit 1
fi
