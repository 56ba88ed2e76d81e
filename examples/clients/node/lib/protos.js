// The service, as the repository's own .proto files describe it.

import { fileURLToPath } from 'node:url';

import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';

const PROTOS = fileURLToPath(new URL('../../../../protos', import.meta.url));

const definition = loader.loadSync('slotmesh/v1/router_service.proto', {
  includeDirs: [PROTOS],
  longs: Number, // call ids are at most 2^53 - 1: a number carries them without loss
  enums: String,
  defaults: true,
  oneofs: true, // frame.frame says which kind a frame is
});

export const { RouterService } = grpc.loadPackageDefinition(definition).slotmesh.v1;

const MAX_MESSAGE_BYTES = 32 * 1024 * 1024;

/** What the transport has to be told so that outages and silent peers behave. */
export const CHANNEL_OPTIONS = {
  'grpc.max_send_message_length': MAX_MESSAGE_BYTES,
  'grpc.max_receive_message_length': MAX_MESSAGE_BYTES,
  'grpc.keepalive_time_ms': 10_000,
  'grpc.keepalive_timeout_ms': 5_000,
  'grpc.initial_reconnect_backoff_ms': 100,
  'grpc.max_reconnect_backoff_ms': 1_000,
  'grpc.enable_retries': 0, // the transport does not know what is safe to try again
};
