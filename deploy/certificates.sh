#!/bin/sh
# Makes ./certificates: a private authority (ca), a certificate for the cloud and one for the edge, and a token.
#   sh deploy/certificates.sh cloud.example.org edge.example.org        # host names or IP addresses
set -eu
[ $# -eq 2 ] || { echo "usage: sh deploy/certificates.sh CLOUD EDGE" >&2; exit 2; }
umask 077
mkdir -p certificates
cd certificates
key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
if [ -e ca.pem ] || [ -e ca.key ]; then
    for file in ca.pem ca.key; do
        [ -e "$file" ] || { echo "certificates/$file is missing: put $file back" >&2; exit 1; }
    done
else
    openssl req -x509 $key -keyout ca.key -out ca.pem -days 3650 -subj "/CN=specdec authority" \
        -addext keyUsage=critical,keyCertSign,cRLSign
fi
new=$(mktemp -d ./new.XXXXXX)
trap 'rm -r "$new"' EXIT
for side in cloud edge; do
    case $1 in *[!0-9.]*) kind=DNS ;; *) kind=IP ;; esac
    case $1 in *:*) kind=IP ;; esac
    # The further names are those of the service in a compose file and in Sedna.
    printf '%s\n' "subjectAltName=$kind:$1,DNS:$side,DNS:specdec-$side.default,DNS:localhost" \
        basicConstraints=CA:FALSE extendedKeyUsage=serverAuth subjectKeyIdentifier=hash authorityKeyIdentifier=keyid \
        > "$new/extensions"
    openssl req -new $key -keyout "$new/$side.key" -out "$new/request" -subj "/CN=$side"
    openssl x509 -req -in "$new/request" -CA ca.pem -CAkey ca.key -CAcreateserial -days 825 \
        -extfile "$new/extensions" -out "$new/$side.pem"
    shift
done
mv -f "$new"/*.key "$new"/*.pem .
[ -e token ] || openssl rand -hex 32 > token
chmod 644 ./*.pem
