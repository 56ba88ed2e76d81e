#!/bin/sh
# For deploy/compose/tls.yaml: issues what the mesh needs into volumes. `init` leaves what is there, `rotate` issues again;
# `token NAME` prints a bearer token, for callers by HTTP; `revoke KIND/NAME` takes certificates back.
set -eu
certs="python -m slotmesh.cli certs"
unset SLOTMESH_TLS_DIR || true
# Where the volumes are.
root=${VOLUMES:-}
tokens=$root/certs/router/tokens.json

hand() { # init|rotate DIRECTORY IDENTITY FILE USER [FLAGS OF certs issue]
    what=$1 directory=$root/certs/$2 identity=$3 file=$4 user=$5
    shift 5
    if [ "$what" = rotate ] || [ ! -e "$directory/$file.crt" ]; then
        $certs issue "$identity" --dir "$root/authority" --out "$directory" "$@"
    fi
    chown -R "$user" "$directory"
}

if [ "$1" = token ]; then
    shift
    exec python -m slotmesh.cli token create "$@" --file "$tokens"
fi

if [ "$1" = revoke ]; then
    shift
    $certs revoke "$@" --dir "$root/authority"
    for directory in "$root"/certs/*/; do
        cp "$root/authority/ca.crl" "$directory/ca.crl.new"
        chown --reference="$directory" "$directory/ca.crl.new"
        mv "$directory/ca.crl.new" "$directory/ca.crl"
    done
    exit
fi

$certs init --if-missing --dir "$root/authority"
if [ ! -e "$tokens" ]; then
    (umask 077; mkdir -p "${tokens%/*}"; echo '{"version": 1, "tokens": []}' >"$tokens")
fi
for role in controller router replica; do
    hand "$1" "$role" "$role" "$role" slotmesh:slotmesh
done
# To the mesh a client, and to HTTP clients and Prometheus a server: of this machine, and in the mesh's network.
hand "$1" ingress ingress ingress slotmesh:slotmesh --dns localhost --dns ingress
hand "$1" operator operator/compose operator-compose slotmesh:slotmesh
# The user that the image of Prometheus has.
hand "$1" viewer viewer/prometheus viewer-prometheus 65534:65534
