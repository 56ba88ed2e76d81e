#!/bin/sh
# For deploy/compose/tls.yaml: issues what the mesh needs into volumes. `init` leaves what is there, `rotate` issues again.
set -eu
certs="python -m slotmesh.cli certs"
unset SLOTMESH_TLS_DIR || true

hand() { # init|rotate DIRECTORY IDENTITY FILE USER
    if [ "$1" = rotate ] || [ ! -e "/certs/$2/$4.crt" ]; then
        $certs issue "$3" --dir /authority --out "/certs/$2"
    fi
    chown -R "$5" "/certs/$2"
}

$certs init --if-missing --dir /authority
for role in controller router replica; do
    hand "$1" "$role" "$role" "$role" slotmesh:slotmesh
done
hand "$1" operator operator/compose operator-compose slotmesh:slotmesh
# The user that the image of Prometheus has.
hand "$1" viewer viewer/prometheus viewer-prometheus 65534:65534
