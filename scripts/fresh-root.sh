# Sourced by scripts that try things in a Debian that has nothing of ours.

# Packages in it come from wherever this machine gets them: its own client settings.   fresh_root_settings ROOT
fresh_root_settings() {
    rm -f "$1/etc/apt/sources.list"
    cp -a /etc/apt/sources.list* /etc/apt/apt.conf.d /etc/apt/trusted.gpg.d "$1/etc/apt/" 2>/dev/null || true
    cp -L --remove-destination /etc/resolv.conf /etc/hosts "$1/etc/"
    [ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$1/etc/"
    mkdir -p "$1/etc/ssl/certs"
    cp -L --remove-destination /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
    [ ! -d /usr/local/share/ca-certificates ] || cp -a /usr/local/share/ca-certificates "$1/usr/local/share/"
}

# The same in words: what of this environment tells clients where to fetch from, NAME=VALUE a line, without blanks.
fresh_root_env() {
    env | grep -E '^(PIP_(CERT|INDEX|EXTRA|TRUSTED)|https?_proxy|no_proxy|SSL_CERT|REQUESTS_CA)' || true
}
